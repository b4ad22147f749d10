"""What graphs give when they are replayed, and what they read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from torch import Tensor

from backend_caps.capability.vocabulary import BatchKind, SharedReadsEnd
from backend_caps.kit.check import (
    Case,
    Check,
    Effort,
    Fault,
    Hint,
    long_cases,
    rotated_cases,
    scenario_of,
)
from backend_caps.kit.errors import BaselineError
from backend_caps.kit.probes.graph_probe import Graphs
from backend_caps.kit.probes.replays import (
    HINTED,
    LAZY,
    NUM_STREAMS,
    first_right,
    graphed_of,
    is_right,
    listed,
    longest,
    no_graphs,
    ordered,
    reordered,
    replayed_of,
    story,
    unreplayed,
    wrong_replay,
)
from backend_caps.kit.probes.seq_lens import BOUND, CUTS, MIRROR, Read, Reads
from backend_caps.kit.rig import Rig, difference
from backend_caps.kit.scenarios import MOST_REQUESTS, Forward, Scenario
from backend_caps.kit.scenes import Scene
from backend_caps.kit.subject import Subject
from backend_caps.report.check_catalog import CATALOG
from backend_caps.simulator import DEVICE_NAME, OrderPolicy, Schedule, systematic_schedules

_OWN_STARVED = Schedule(OrderPolicy.STARVE, NUM_STREAMS - 1)


def _cases_replay(subject: Subject, effort: Effort) -> Iterator[Case]:
    """Try each forward in plain order, one over long contexts, and one in each of some orders."""
    for seed in effort.seeds:
        one = Effort(seeds=(seed,))
        cases = list(rotated_cases("replay", subject, replayed_of(subject), one))
        yield from cases
        yield from long_cases(cases, one)
        orders = LAZY, _OWN_STARVED, Schedule(OrderPolicy.RANDOM, seed)
        yield from reordered(cases, orders, seed)


def _run_replay(rig: Rig, case: Case) -> Iterator[Fault]:
    scenario = scenario_of(case)
    scenes = story(scenario, case.seed)
    expected = [rig.baseline(scene) for scene in scenes]
    with ordered(rig, case.schedule):
        graphs = Graphs(rig, scenario)
        graphs.capture()
        wrong = wrong_replay(graphs, scenes, expected)
    if wrong is not None:
        read = _read_in_capture(rig, scenario)
        told = "" if read is None else f"; its capture reads {read.name}, which a replay does not"
        yield Fault(what=f"{wrong}{told}", site=None if read is None else read.site)


def _read_in_capture(rig: Rig, scenario: Scenario) -> Read | None:
    """Find the first host length that is read where a graph is captured, in a capture of its own.

    None where nothing is read, and where this capture fails: the fault stands without it.
    """
    reads = Reads(rig.subject)
    with suppress(Exception), rig.running():
        graphs = Graphs(rig, scenario)
        graphs.proxy.watch = reads.watch
        graphs.capture()
    return next(iter(reads.of(MIRROR | BOUND | CUTS)), None)


def _hints_replay(subject: Subject, _ran: Sequence[Case], rig: Rig) -> Iterator[Hint]:
    """Try the kinds that are not claimed."""
    claimed = replayed_of(subject)
    others = [own for own in graphed_of(subject) if own not in claimed]
    for kind in BatchKind:
        forwards = [own for own in others if own.batch_kind is kind]
        cases = list(rotated_cases("replay", subject, forwards, HINTED))
        if cases and all(is_right(_run_replay, rig, case) for case in cases):
            yield Hint(
                claim="graph_replay",
                what=f"graph_replay leaves out {kind.value}; replayed right in {len(cases)} cases "
                f"of {listed(forwards)}; candidate",
            )


REPLAY = Check(
    about=CATALOG["replay"],
    excuse=unreplayed,
    cases=_cases_replay,
    run=_run_replay,
    hints=_hints_replay,
    unfit=no_graphs,
)


_SMALL = (1, 2)
"""Requests of the graphs that are captured first."""
_COUNTS_ADDRESSES = (2, 2, 1)
"""Requests of the batches that replay them, the first one before anything grows."""


def _run_addresses(rig: Rig, case: Case) -> Iterator[Fault]:
    scenario = scenario_of(case)
    first, *small = story(scenario, case.seed, _COUNTS_ADDRESSES)
    large = longest(scenario, case.seed, MOST_REQUESTS)
    expected, expected_large = [rig.baseline(scene) for scene in small], rig.baseline(large)
    with rig.running(case.schedule):
        graphs = Graphs(rig, scenario)
        graphs.capture(_SMALL)
        graphs.launch(graphs.bring(first))
        differs = difference(graphs.run(large).attended(), expected_large, graphs.tolerance)
        behind_eager = differs or wrong_replay(graphs, small, expected)
        graphs.capture([MOST_REQUESTS])
        behind_capture = wrong_replay(graphs, [*small, large], [*expected, expected_large])
    if behind_eager is not None:
        yield Fault(what=f"behind an eager forward of {MOST_REQUESTS} requests, {behind_eager}")
    elif behind_capture is not None:
        yield Fault(what=f"behind a capture for {MOST_REQUESTS} requests, {behind_capture}")


ADDRESSES = Check(
    about=CATALOG["addresses"],
    excuse=unreplayed,
    cases=lambda own, effort: rotated_cases("addresses", own, replayed_of(own), effort),
    run=_run_addresses,
    unfit=no_graphs,
)


_COUNTS_READS_END = (3, 2)
"""Requests of the batches of a case: a padded one, and another graph's."""


def reads_end_of(subject: Subject, forward: Forward) -> SharedReadsEnd:
    """Return where a backend claims to end its reads of what is shared."""
    return subject.claim_as(SharedReadsEnd, "shared_reads_end", forward.role, forward.phase)


def _held(subject: Subject) -> Sequence[Forward]:
    """List the forwards whose claim names a point."""
    return [
        own
        for own in replayed_of(subject)
        if reads_end_of(subject, own) is not SharedReadsEnd.UNKNOWN
    ]


def _excuse_reads_end(subject: Subject) -> str | None:
    if _held(subject):
        return None
    return unreplayed(subject) or "it claims UNKNOWN: nobody writes before the forward's end"


def _cases_reads_end(subject: Subject, effort: Effort) -> Iterator[Case]:
    """Try each forward lazily, which shows most, and one of them in each other order."""
    others = [own for own in systematic_schedules(NUM_STREAMS) if own != LAZY]
    for seed in effort.seeds:
        cases = _lazy_cases(subject, _held(subject), Effort(seeds=(seed,)))
        yield from cases
        yield from reordered(cases, [*others, Schedule(OrderPolicy.RANDOM, seed)], seed)


def _lazy_cases(subject: Subject, forwards: Sequence[Forward], effort: Effort) -> Sequence[Case]:
    cases = rotated_cases("reads-end", subject, forwards, effort)
    return [replace(own, schedule=LAZY) for own in cases]


def _run_reads_end(rig: Rig, case: Case) -> Iterator[Fault]:
    scenario = scenario_of(case)
    return _faults_at(reads_end_of(rig.subject, scenario.forward), rig, case)


def _faults_at(point: SharedReadsEnd, rig: Rig, case: Case) -> Iterator[Fault]:
    """Write to what is shared behind a point."""
    scenario = scenario_of(case)
    scenes = story(scenario, case.seed, _COUNTS_READS_END)
    expected = [rig.baseline(scene) for scene in scenes]
    with ordered(rig, case.schedule):
        graphs = Graphs(rig, scenario, point)
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


def _hints_reads_end(subject: Subject, _ran: Sequence[Case], rig: Rig) -> Iterator[Hint]:
    """Try the points before the claimed ones, the first one first, in the order that shows most."""
    late = [
        own
        for own in replayed_of(subject)
        if reads_end_of(subject, own) > SharedReadsEnd.PRE_REPLAY
    ]
    if not late or rig.device != DEVICE_NAME:
        return
    claimed = max(reads_end_of(subject, own) for own in late)
    cases = _lazy_cases(subject, late, HINTED)
    earlier = [own for own in SharedReadsEnd if own < claimed]
    point = first_right(earlier, _faults_at, rig, cases)
    if point is not None:
        yield Hint(
            claim="shared_reads_end",
            what=f"declared {claimed.name}; what was written behind {point.name} changed "
            f"nothing in {len(cases)} cases of {listed(late)}; candidate for {point.name}",
        )


READS_END = Check(
    about=CATALOG["reads-end"],
    excuse=_excuse_reads_end,
    cases=_cases_reads_end,
    run=_run_reads_end,
    hints=_hints_reads_end,
    unfit=no_graphs,
)
