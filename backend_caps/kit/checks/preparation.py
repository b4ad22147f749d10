"""Metadata of a replay, and preparation without a host wait."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from backend_caps.capability.kind import UNDECLARED
from backend_caps.capability.vocabulary import GraphMetadata
from backend_caps.kit import Case, Check, Fault, Forward, Hint, Rig, Subject
from backend_caps.kit.check import counted, replayed_forwards, rotated_cases, scenario_of
from backend_caps.kit.checks import replay
from backend_caps.kit.probes.graph_probe import Graphs
from backend_caps.kit.probes.playback import Player
from backend_caps.kit.probes.seq_lens import BOUND, CUTS, MIRROR, Reads, host_waits
from backend_caps.kit.probes.stories import Turn, story_of
from backend_caps.kit.rig import baseline_of
from backend_caps.report.check_catalog import CATALOG
from backend_caps.runtime.forward_batch import ForwardBatch
from backend_caps.simulator import Counts, HostSync, Simulation

_, _DEVICE, _IN_GRAPH = GraphMetadata


def level_of(subject: Subject, forward: Forward) -> GraphMetadata:
    """Return how a backend claims to rebuild metadata, in a forward's role and phase."""
    return subject.claim_as(GraphMetadata, "graph_metadata", forward.role, forward.phase)


def _faults_of(level: GraphMetadata, rig: Rig, case: Case) -> Iterator[Fault]:
    """Hold replays to a level."""
    scenario = scenario_of(case)
    scenes = replay.story(scenario, case.seed)
    expected = [rig.baseline(scene) for scene in scenes]
    with rig.running(case.schedule) as simulation:
        graphs = Graphs(rig, scenario).capture()
        planner = Planner(graphs, rig.subject, simulation)
        graphs.proxy.init_forward_metadata_out_graph = (
            planner.plan if level is _DEVICE else lambda _batch: None  # the graph has to
        )
        wrong = replay.wrong_replay(graphs, scenes, expected)
    if level is _DEVICE:
        yield from planner.faults()
    elif wrong is not None:
        yield Fault(what=f"with init_forward_metadata_out_graph left out, {wrong}")


class Planner:
    """Calls a backend's preparation of replays, and records its copies, waits and reads.

    Args:
        graphs: whose backend.
        subject: the same, with its files.
        simulation: counts copies; None on a real device, where nothing does.
    """

    def __init__(self, graphs: Graphs, subject: Subject, simulation: Simulation | None) -> None:
        self._backend, self._simulation = graphs.proxy.backend, simulation
        self._reads = Reads(subject)
        self._spent: list[Counts] = []
        self._waits: list[HostSync] = []

    def plan(self, batch: ForwardBatch) -> None:
        """Prepare one replay."""
        watched = self._reads.watch(batch)
        if self._simulation is None:
            self._backend.init_forward_metadata_out_graph(watched)
            return
        before = self._simulation.counts
        with host_waits(self._simulation) as waits:
            self._backend.init_forward_metadata_out_graph(watched)
        self._spent.append(self._simulation.counts - before)
        self._waits += waits

    def faults(self) -> Iterator[Fault]:
        """List what is no device work."""
        where = "init_forward_metadata_out_graph"
        for read in self._reads.of(MIRROR | BOUND | CUTS)[:1]:
            yield Fault(what=f"{where} reads {read.name}, a host value", site=read.site)
        for wait in self._waits[:1]:
            yield Fault(what=f"{where} makes the host wait, by {wait.cause}", site=wait.site)
        for side in ("device", "host"):
            if moved := max((getattr(own, f"bytes_to_{side}") for own in self._spent), default=0):
                yield Fault(what=f"{where} copies {moved} bytes to the {side}; none were expected")


def _hints_metadata(subject: Subject, _ran: Sequence[Case], rig: Rig) -> Iterator[Hint]:
    """Try the levels above the claimed ones, the best first."""
    levels = {own: level_of(subject, own) for own in replay.replayed_of(subject)}
    below = [own for own, level in levels.items() if level is not _IN_GRAPH]
    if not below:
        return
    claimed = min(levels.values())
    cases = list(rotated_cases("metadata", subject, below, replay.HINTED))
    above = [own for own in (_IN_GRAPH, _DEVICE) if own > claimed]
    if (level := replay.first_right(above, _faults_of, rig, cases)) is not None:
        yield Hint(
            claim="graph_metadata",
            what=f"declared {claimed.name}; {len(cases)} cases of {replay.listed(below)} kept what "
            f"{level.name} asks for; candidate for {level.name}",
        )


METADATA = Check(
    about=CATALOG["metadata"],
    excuse=replay.unless_held("graph_metadata", "it claims HOST, which asks for nothing"),
    cases=lambda own, effort: rotated_cases(
        "metadata", own, replay.held(own, "graph_metadata"), effort
    ),
    run=lambda rig, case: _faults_of(level_of(rig.subject, scenario_of(case).forward), rig, case),
    hints=_hints_metadata,
    unfit=replay.no_graphs,
)


_NO_WAITS = "on cpu the host does the work itself, and waits for nobody"
_MOST_WAITS = 3
"""Of one case: one line in a loop waits many times."""


class _TurnWait(NamedTuple):
    """A wait in a turn of a story."""

    method: str
    """What waited: one of the backend's methods."""
    wait: HostSync
    turn: Turn
    place: int
    """Of the turn."""

    @property
    def is_forward(self) -> bool:
        """Whether layers waited, and not what comes before them."""
        return self.method == "forward"


def _run_prepare(rig: Rig, case: Case) -> Iterator[Fault]:
    first_of_line: dict[object, _TurnWait] = {}
    # Another check reports what a backend raises.
    for own in baseline_of(lambda: _seen(rig, case)):
        use = own.turn.forward.role, own.turn.forward.phase
        if own.is_forward or rig.subject.claim("sync_free_prepare", *use) is True:
            first_of_line.setdefault((own.method, own.wait.site), own)
    for own in islice(first_of_line.values(), _MOST_WAITS):
        yield _fault(rig.subject, own)


def _fault(subject: Subject, seen: _TurnWait) -> Fault:
    site, is_own = seen.wait.site, subject.owns(seen.wait.site.file)
    reason = "its contract says Sync: none" if seen.is_forward else "sync_free_prepare is claimed"
    count = len(seen.turn.scene.counts)
    return Fault(
        what=f"{seen.method} made the host wait, by {seen.wait.cause} at "
        f"{Path(site.file).name}:{site.line}, in turn {seen.place}, {seen.turn.forward.value} of "
        f"{count} request{'s' if count > 1 else ''}; {reason}",
        site=site if is_own else None,
    )


def _seen(rig: Rig, case: Case) -> Sequence[_TurnWait]:
    """Play a story, and take down every wait of the backend.

    Raises:
        Exception: whatever the backend raises.
    """
    story = story_of(rig.subject, scenario_of(case), case.seed)
    # In the lazy order, whatever else a case is: where work runs as soon as it is launched, a loop
    # that polls an event never gets a no, and looks like no wait.
    with rig.running("lazy") as simulation:
        player = Player(rig, story)
        if replayed_forwards(rig.subject):
            sizes = ((own.scene.batch.batch_size, len(own.scene.q)) for own in story.turns)
            player.backend.init_cuda_graph_state(*map(max, zip(*sizes, strict=True)))
        found: list[_TurnWait] = []
        for place, turn in enumerate(story.turns):
            for method, call in _calls_of(rig.subject, player, turn):
                with host_waits(simulation) as waits:
                    call()
                found += [_TurnWait(method, own, turn, place) for own in waits]
        return found


def _calls_of(
    subject: Subject, player: Player, turn: Turn
) -> Iterator[tuple[str, Callable[[], object]]]:
    """List what runs a turn eagerly, then prepares it as in front of a replay, by its names."""
    scene, backend = player.bring(turn), player.backend
    yield "init_forward_metadata", partial(backend.init_forward_metadata, scene.batch)
    yield "forward", partial(scene.forward, backend)
    if turn.forward in replayed_forwards(subject):
        for call in (
            backend.init_forward_metadata_out_graph,
            backend.init_forward_metadata_in_graph,
        ):
            yield call.__name__, partial(call, scene.batch)


def _hints_prepare(subject: Subject, cases: Sequence[Case], rig: Rig) -> Iterator[Hint]:
    """Look where preparing may wait, by what is claimed, and did not."""
    stated = subject.declaration.capabilities.sync_free_prepare
    waits = (own for case in cases for own in _seen(rig, case) if not own.is_forward)
    if stated is True or not cases or any(waits):
        return
    claimed = "not declared, so False" if stated is UNDECLARED else "declared False"
    yield Hint(
        claim="sync_free_prepare",
        what=f"{claimed}; never waited {counted(cases)}; candidate for True",
    )


SYNC_FREE_PREPARE = Check(
    about=CATALOG["sync-free-prepare"],
    cases=lambda own, effort: rotated_cases(
        "sync-free-prepare", own, list(Forward), effort, share=2
    ),
    run=_run_prepare,
    hints=_hints_prepare,
    unfit=lambda device: _NO_WAITS if device == "cpu" else None,
)
