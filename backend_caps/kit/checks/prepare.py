"""No forward makes the host wait for the device, and no preparation where that is claimed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from backend_caps.capability.scale import UNDECLARED
from backend_caps.kit.check import Case, Check, Effort, Fault, Hint, always
from backend_caps.kit.errors import BaselineError
from backend_caps.kit.probes.waits import HostWait, host_waits
from backend_caps.kit.rig import Rig
from backend_caps.kit.rotating import replayed_forwards, rotated_cases
from backend_caps.kit.scenarios import Forward
from backend_caps.kit.subject import Subject
from backend_caps.kit.workloads.playing import Player
from backend_caps.kit.workloads.sequences import Turn, story_of
from backend_caps.simulator import Simulation

_CODE = "sync-free-prepare"
_MOST_WAITS = 3
"""Of one case: one line in a loop waits many times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """A wait in a turn of a story."""

    method: str
    """What waited: one of the backend's methods."""
    place: int
    """Of the turn."""
    turn: Turn
    wait: HostWait

    @property
    def is_forward(self) -> bool:
        """Whether layers waited, and not what comes before them."""
        return self.method == "forward"


def _unfit(device: str) -> str | None:
    return "on cpu the host does the work itself, and waits for nobody" if device == "cpu" else None


def _cases(subject: Subject, effort: Effort) -> Iterable[Case]:
    return rotated_cases(_CODE, subject, list(Forward), effort, share=2)


def _run(rig: Rig, case: Case) -> Iterator[Fault]:
    owed = [own for own in _seen(rig, case) if own.is_forward or _is_claimed(rig.subject, own.turn)]
    first_of_line = {(own.method, own.wait.site): own for own in reversed(owed)}
    for own in [seen for seen in owed if seen in first_of_line.values()][:_MOST_WAITS]:
        yield _fault(rig.subject, own)


def _fault(subject: Subject, seen: _Seen) -> Fault:
    site, is_own = seen.wait.site, subject.owns(seen.wait.site.file)
    reason = "its contract says Sync: none" if seen.is_forward else "sync_free_prepare is claimed"
    count = len(seen.turn.scene.counts)
    return Fault(
        what=f"{seen.method} made the host wait, by {seen.wait.cause} at "
        f"{Path(site.file).name}:{site.line}, in turn {seen.place}, {seen.turn.forward.value} of "
        f"{count} request{'s' if count > 1 else ''}; {reason}",
        site=site if is_own else None,
    )


def _seen(rig: Rig, case: Case) -> Sequence[_Seen]:
    """Play a story, and take down every wait of the backend.

    Raises:
        BaselineError: it raised; what it lacks is another check's to say.
    """
    assert case.scenario is not None, "each case has batches"
    story = story_of(rig.subject, case.scenario, case.seed)
    try:
        # In the lazy order, whatever else a case is: where work runs as soon as it is launched,
        # a loop that polls an event never gets a no, and looks like no wait.
        with rig.running("lazy") as simulation:
            player = Player(rig, story)
            if replayed_forwards(rig.subject):
                batches = [turn.scene.batch for turn in story.turns]
                player.backend.init_cuda_graph_state(
                    max(own.batch_size for own in batches), max(own.num_tokens for own in batches)
                )
            return [
                own
                for place, turn in enumerate(story.turns)
                for own in _of_turn(rig.subject, player, place, turn, simulation)
            ]
    except Exception as error:  # a plugin raises what it likes
        raise BaselineError(problem=f"{type(error).__name__}: {error}") from error


def _of_turn(
    subject: Subject, player: Player, place: int, turn: Turn, simulation: Simulation | None
) -> Iterator[_Seen]:
    """Run a turn eagerly, then prepare it as in front of a replay."""
    scene, backend = player.bring(turn), player.backend
    batch = scene.batch

    def seen(method: str, call: Callable[[], object]) -> Iterator[_Seen]:
        with host_waits(simulation) as waits:
            call()
        return (_Seen(method=method, place=place, turn=turn, wait=own) for own in waits)

    yield from seen("init_forward_metadata", lambda: backend.init_forward_metadata(batch))
    yield from seen("forward", lambda: scene.forward(backend))
    if turn.forward in replayed_forwards(subject):
        for call in (
            backend.init_forward_metadata_out_graph,
            backend.init_forward_metadata_in_graph,
        ):
            yield from seen(call.__name__, partial(call, batch))


def _is_claimed(subject: Subject, turn: Turn) -> bool:
    forward = turn.forward
    return subject.claim("sync_free_prepare", forward.role, forward.phase) is True


def _hints(subject: Subject, cases: Sequence[Case], rig: Rig) -> Iterator[Hint]:
    """Look where preparing may wait, by what is claimed, and did not."""
    if subject.declaration.capabilities.sync_free_prepare is True or not cases:
        return
    if any(not own.is_forward for case in cases for own in _seen(rig, case)):
        return
    is_said = subject.declaration.capabilities.sync_free_prepare is not UNDECLARED
    claimed = "declared False" if is_said else "not declared, so False"
    forwards = sorted({case.scenario.forward.value for case in cases if case.scenario is not None})
    yield Hint(
        claim="sync_free_prepare",
        what=f"{claimed}; never waited in {len(cases)} cases over {len(forwards)} forwards "
        f"({', '.join(forwards)}); candidate for True",
    )


CHECK = Check(
    code=_CODE,
    claims=("sync_free_prepare",),
    title="The host does not wait.",
    proves="In batch after batch of one backend, no forward makes the host wait, which every one "
    "owes; and no init_forward_metadata does, where sync_free_prepare is claimed.",
    cannot="A wait on a path that no case takes, and a loop that polls and launches or records "
    "something each time; on a real device also a synchronize by name, every poll, and what other "
    "libraries wait for.",
    excuse=always,
    cases=_cases,
    run=_run,
    hints=_hints,
    unfit=_unfit,
)
