"""Behind the point that a backend declares, the scheduler may write to what it shares."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from torch import Tensor

from backend_caps.capability.vocabulary import SharedReadsEnd
from backend_caps.kit.check import Case, Check, Effort, Fault, Hint
from backend_caps.kit.errors import BaselineError
from backend_caps.kit.probes.captured import Graphs
from backend_caps.kit.probes.replays import (
    EAGER_CHECKS,
    LAZY,
    NUM_STREAMS,
    is_right,
    listed,
    no_graphs,
    ordered,
    replayed_of,
    story,
)
from backend_caps.kit.rig import Rig, difference
from backend_caps.kit.rotating import rotated_cases
from backend_caps.kit.scenarios import Forward
from backend_caps.kit.scenes import Scene
from backend_caps.kit.subject import Subject
from backend_caps.simulator import (
    DEVICE_NAME,
    OrderPolicy,
    Schedule,
    systematic_schedules,
)

_UNKNOWN = SharedReadsEnd.UNKNOWN
_COUNTS = (3, 2)
"""Requests of the batches of a case: a padded one, and another graph's."""
_HINTED = Effort(seeds=range(2))


def reads_end_of(subject: Subject, forward: Forward) -> SharedReadsEnd:
    """Say where a backend claims to end its reads of what is shared."""
    point = subject.claim("shared_reads_end", forward.role, forward.phase)
    assert isinstance(point, SharedReadsEnd), "a point is one of the scale"
    return point


def _held(subject: Subject) -> Sequence[Forward]:
    """List the forwards whose claim names a point."""
    return [own for own in replayed_of(subject) if reads_end_of(subject, own) is not _UNKNOWN]


def _excuse(subject: Subject) -> str | None:
    if not replayed_of(subject):
        return "it claims no kind of batch in graph_replay"
    return None if _held(subject) else "it claims UNKNOWN: nobody writes before the forward's end"


def _cases(subject: Subject, effort: Effort) -> Iterator[Case]:
    """Try each forward lazily, which shows most, and one of them in each other order."""
    others = [own for own in systematic_schedules(NUM_STREAMS) if own != LAZY]
    for seed in effort.seeds:
        cases = _lazy_cases(subject, _held(subject), Effort(seeds=(seed,)))
        yield from cases
        for place, schedule in enumerate([*others, Schedule(OrderPolicy.RANDOM, seed)]):
            yield replace(cases[(seed + place) % len(cases)], schedule=schedule)


def _lazy_cases(subject: Subject, forwards: Sequence[Forward], effort: Effort) -> Sequence[Case]:
    cases = rotated_cases("reads-end", subject, forwards, effort)
    return [replace(own, schedule=LAZY) for own in cases]


def _run(rig: Rig, case: Case) -> Iterator[Fault]:
    assert case.scenario is not None, "each case has batches"
    return _faults_at(reads_end_of(rig.subject, case.scenario.forward), rig, case)


def _faults_at(point: SharedReadsEnd, rig: Rig, case: Case) -> Iterator[Fault]:
    """Write to what is shared behind a point."""
    assert case.scenario is not None, "each case has batches"
    scenes = story(case.scenario, case.seed, _COUNTS)
    expected = [rig.baseline(scene) for scene in scenes]
    with ordered(rig, case.schedule):
        graphs = Graphs(rig, case.scenario, point)
        graphs.capture()
        wrong = None
        for scene, eager in zip(scenes, expected, strict=True):
            wrong = difference(_overwritten(graphs, scene), eager, graphs.tolerance)
            if wrong is not None:
                _require_right(graphs, scene, eager)
                break
    if wrong is not None:
        said = f"page table and batch were overwritten behind {point.name}"
        yield Fault(what=f"{said}, and the replay shows it: {wrong}")


def _require_right(graphs: Graphs, scene: Scene, eager: Tensor) -> None:
    """Raise where a replay is wrong in this order whether or not anybody writes."""
    left = graphs.launch(graphs.bring(scene))
    wrong = difference(left.attended(), eager, graphs.tolerance)
    if wrong is not None:
        raise BaselineError(problem=f"in a replay that nobody disturbs, {wrong}")


def _overwritten(graphs: Graphs, scene: Scene) -> Tensor:
    """Replay a scene, and write to what is shared as early as the declared point allows."""
    there = graphs.bring(scene)
    batch = graphs.load(there)
    done = graphs.replay(batch).reads_done
    assert done is not None, "who declares a point has it marked"
    graphs.schedule_stream.wait_event(done)
    with graphs.streams.using(graphs.schedule_stream):
        graphs.overwrite(batch)
    graphs.schedule_stream.synchronize()
    return graphs.left(there).attended()


def _hints(subject: Subject, _ran: Sequence[Case], rig: Rig) -> Iterator[Hint]:
    """Try the points before the claimed ones, the first one first, in the order that shows most."""
    late = [
        own
        for own in replayed_of(subject)
        if reads_end_of(subject, own) > SharedReadsEnd.PRE_REPLAY
    ]
    if not late or rig.device != DEVICE_NAME:
        return
    claimed = max(reads_end_of(subject, own) for own in late)
    cases = _lazy_cases(subject, late, _HINTED)
    for point in SharedReadsEnd:
        if point < claimed and all(is_right(partial(_faults_at, point), rig, own) for own in cases):
            yield Hint(
                claim="shared_reads_end",
                what=f"declared {claimed.name}; what was written behind {point.name} changed "
                f"nothing in {len(cases)} cases of {listed(late)}; candidate for {point.name}",
            )
            return


CHECK = Check(
    code="reads-end",
    claims=("shared_reads_end",),
    title="Behind the declared point nothing is read that the scheduler shares.",
    proves="Page table and batch were overwritten right behind the declared point of a replay, "
    "with the device's work in any of some orders, and the output did not change.",
    cannot="Reads of what no case overwrites, and orders that no schedule has; on a real device, "
    "its own order alone.",
    excuse=_excuse,
    cases=_cases,
    run=_run,
    hints=_hints,
    after=(*EAGER_CHECKS, "replay"),
    unfit=no_graphs,
)
