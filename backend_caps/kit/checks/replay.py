"""Checks of graph replays: outputs, addresses, and the end of reads of shared tensors.

Shapes: T tokens in a batch, Hq query heads, Dv the values' size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TypeVar

from torch import Tensor

from backend_caps.capability.kind import Phase
from backend_caps.capability.vocabulary import CAPABILITIES, BatchKind, SharedReadsEnd
from backend_caps.kit import Case, Check, Effort, Fault, Hint, Rig, Scenario, Subject, difference
from backend_caps.kit.check import long_cases, reordered, replayed_forwards, rotated_cases
from backend_caps.kit.errors import BaselineError
from backend_caps.kit.probes.graph_probe import Graphs
from backend_caps.kit.probes.seq_lens import BOUND, CUTS, MIRROR, Read, Reads
from backend_caps.kit.scenarios import MOST_REQUESTS, Forward, dice_for, draw_requests, forwards_of
from backend_caps.kit.scenes import Scene
from backend_caps.relay.streams import DEVICE_TRAITS
from backend_caps.report.check_catalog import CATALOG
from backend_caps.simulator import DEVICE_NAME, OrderPolicy, Schedule, systematic_schedules

_Level = TypeVar("_Level")
GRAPHED = (Forward.DECODE, Forward.VERIFY, Forward.TREE, Forward.MIXED)
"""Forwards whose graphs are tested: a draft model's batches have the same shapes."""
LAZY = Schedule(OrderPolicy.LAZY)
"""The schedule that finds most: device work runs only once the host waits for it."""
NUM_STREAMS = 4
"""The default, the forward and the schedule stream, and one that a backend makes."""
HINTED = Effort(seeds=range(2))
"""The effort before a hint suggests a stronger claim."""
# Numbers of requests. Each story has the same graph twice in a row, full and padded graphs, small
# after large and large after small.
_STORIES = ((4, 3, 1, 1, 2, 4), (1, 4, 4, 2, 3, 1), (2, 1, 3, 4, 4, 2), (3, 4, 2, 1, 1, 3))


def no_graphs(device: str) -> str | None:
    """Return why checks of graphs cannot run on a device; None: they can."""
    return None if DEVICE_TRAITS[device].has_graphs else f"no graphs on {device}"


def replayed_of(subject: Subject) -> tuple[Forward, ...]:
    """List the forwards in `GRAPHED` whose graphs a backend claims to replay."""
    return tuple(forward for forward in replayed_forwards(subject) if forward in GRAPHED)


def unreplayed(subject: Subject) -> str | None:
    """Excuse a backend that claims no graph replay."""
    return None if replayed_of(subject) else "it claims no kind of batch in graph_replay"


def claiming_forwards(subject: Subject, capability: str) -> Sequence[Forward]:
    """List the replayed forwards whose claim is better than a capability's worst value."""
    forwards, worst = replayed_of(subject), CAPABILITIES[capability].worst
    return [each for each in forwards if subject.claim(capability, **each.use) != worst]


def unless_claiming(capability: str, reason: str) -> Callable[[Subject], str | None]:
    """Excuse a backend without graph replay, or with the capability's worst value everywhere."""
    return lambda subject: (
        None if claiming_forwards(subject, capability) else unreplayed(subject) or reason
    )


def story(scenario: Scenario, seed: int, counts: Sequence[int] | None = None) -> Sequence[Scene]:
    """Draw a sequence of batches.

    Args:
        scenario: the kind of batches.
        seed: the seed of the draws.
        counts: the number of requests of each batch; None: one of `_STORIES`, by the seed.
    """
    usual = _STORIES[seed % len(_STORIES)] if counts is None else counts
    counts = [_scaled(count, scenario) for count in usual]
    dice = dice_for(scenario, seed)
    return [
        draw_requests(scenario, dice, count, setting_seed=16 * seed + place)
        for place, count in enumerate(counts)
    ]


def _scaled(count: int, scenario: Scenario) -> int:
    """Return a number of requests, as near to a scenario's most as one is to the usual most."""
    return count if count <= _FEW else count + scenario.max_requests - MOST_REQUESTS


_FEW = 2
"""Requests that are few whatever the most are."""


def longest(scenario: Scenario, seed: int, count: int) -> Scene:
    """Draw three batches as of a story, and return the one with the longest context.

    Args:
        scenario: the kind of batches.
        seed: the seed of the draws.
        count: the number of requests of each, before it is scaled.
    """
    drawn = story(scenario, seed, [count] * 3)
    return max(drawn, key=lambda scene: int(scene.batch.seq_lens.max()))


def wrong_replay(graphs: Graphs, scenes: Sequence[Scene], expected: Sequence[Tensor]) -> str | None:
    """Replay scenes in order, and describe the first wrong replay; None where all are right.

    The host launches all replays before it reads a result, as an engine with overlap does.

    expected  [T, Hq, Dv], host, for each scene
    """
    on_device = [graphs.bring(scene) for scene in scenes]
    results = [graphs.launch(scene) for scene in on_device]
    for number, (scene, eager, result) in enumerate(zip(scenes, expected, results, strict=True), 1):
        wrong = difference(result.attended(), eager, graphs.tolerance)
        if wrong is None and (slots := result.strays(scene)):
            wrong = f"it wrote to slots {slots}, which are not the batch's"
        if wrong is not None:
            size = f"of {scene.batch.batch_size} requests"
            return f"replay {number}, {size}, is not what its eager run is: {wrong}"
    return None


def first_right(
    levels: Iterable[_Level],
    run: Callable[[_Level, Rig, Case], Iterable[Fault]],
    rig: Rig,
    cases: Sequence[Case],
) -> _Level | None:
    """Return the first level at which no case finds a fault; None where there is none."""
    for level in levels:
        if all(is_right(partial(run, level), rig, case) for case in cases):
            return level
    return None


def is_right(run: Callable[[Rig, Case], Iterable[Fault]], rig: Rig, case: Case) -> bool:
    """Return whether a case finds no fault and raises nothing."""
    with suppress(Exception):  # a plugin raises what it likes
        return not list(run(rig, case))
    return False


def listed(forwards: Iterable[Forward]) -> str:
    """Join the names of forwards."""
    return ", ".join(forward.value for forward in forwards)


_OWN_STARVED = Schedule(OrderPolicy.STARVE, NUM_STREAMS - 1)


def _cases_replay(subject: Subject, effort: Effort) -> Iterator[Case]:
    """Make a case of each forward, and others of some.

    One is over long contexts, one over shared ones, and one in each of three schedules.
    """
    for seed in effort.seeds:
        one = Effort(seeds=(seed,))
        cases = list(rotated_cases("replay", subject, one, replayed_of(subject)))
        yield from cases
        yield from long_cases(cases, one)
        yield from _shared_cases(cases, seed)
        yield from reordered(cases, (LAZY, _OWN_STARVED, Schedule(OrderPolicy.RANDOM, seed)), seed)


def _shared_cases(cases: Sequence[Case], seed: int) -> Iterator[Case]:
    """Make a case whose requests have the same first tokens, of one of the uniform forwards."""
    uniform = [case for case in cases if case.batch_scenario.forward.phase is not Phase.PREFILL]
    for case in uniform[seed % max(1, len(uniform)) :][:1]:
        yield replace(case, scenario=replace(case.batch_scenario, is_shared=True))


def _run_replay(rig: Rig, case: Case) -> Iterator[Fault]:
    scenario = case.batch_scenario
    scenes = story(scenario, case.seed)
    expected = [rig.baseline(scene) for scene in scenes]
    with rig.running(case.schedule):
        graphs = Graphs(rig, scenario).capture()
        wrong = wrong_replay(graphs, scenes, expected)
    if wrong is not None:
        read = _read_in_capture(rig, scenario)
        cause = "" if read is None else f"; its capture reads {read.name}, which a replay does not"
        yield Fault(what=f"{wrong}{cause}", site=None if read is None else read.site)


def _read_in_capture(rig: Rig, scenario: Scenario) -> Read | None:
    """Find the first host length that the backend reads in a capture, by capturing once more.

    None where it reads none, and where this capture fails: it only explains a fault.
    """
    reads = Reads(rig.subject)
    with suppress(Exception), rig.running():
        graphs = Graphs(rig, scenario)
        graphs.proxy.watch = reads.watch
        graphs.capture()
    return next(iter(reads.of(MIRROR | BOUND | CUTS)), None)


def _hints_replay(subject: Subject, _ran: Sequence[Case], rig: Rig) -> Iterator[Hint]:
    """Replay the batch kinds that are not claimed."""
    unclaimed = {*forwards_of(subject)} & {*GRAPHED} - {*replayed_of(subject)}
    for kind in BatchKind:
        forwards = [each for each in GRAPHED if each in unclaimed and each.batch_kind is kind]
        cases = list(rotated_cases("replay", subject, HINTED, forwards))
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
"""Requests of the graphs that are captured before the buffers have to grow."""
_COUNTS_ADDRESSES = (2, 2, 1)
"""Requests of the batches that replay them; the first replay is before the growth."""


def _run_addresses(rig: Rig, case: Case) -> Iterator[Fault]:
    scenario = case.batch_scenario
    first, *small = story(scenario, case.seed, _COUNTS_ADDRESSES)
    most = scenario.max_requests
    large = longest(scenario, case.seed, MOST_REQUESTS)
    expected, expected_large = [rig.baseline(scene) for scene in small], rig.baseline(large)
    with rig.running(case.schedule):
        graphs = Graphs(rig, scenario).capture(_SMALL)
        graphs.launch(graphs.bring(first))
        differs = difference(graphs.run(large).attended(), expected_large, graphs.tolerance)
        behind_eager = differs or wrong_replay(graphs, small, expected)
        graphs.capture([most])
        behind_capture = wrong_replay(graphs, [*small, large], [*expected, expected_large])
    if behind_eager is not None:
        yield Fault(what=f"behind an eager forward of {most} requests, {behind_eager}")
    elif behind_capture is not None:
        yield Fault(what=f"behind a capture for {most} requests, {behind_capture}")


ADDRESSES = Check(
    about=CATALOG["addresses"],
    excuse=unreplayed,
    cases=lambda subject, effort: rotated_cases("addresses", subject, effort, replayed_of(subject)),
    run=_run_addresses,
    unfit=no_graphs,
)


_UNENDED = "it claims UNKNOWN: the engine writes only after the forward's end"
_COUNTS_READS_END = (3, 2)
"""Requests of a case's batches: a padded one, and one of another graph."""


def reads_end_of(subject: Subject, forward: Forward) -> SharedReadsEnd:
    """Return the point at which a backend claims to end its reads of shared tensors."""
    return subject.claim_as(SharedReadsEnd, "shared_reads_end", **forward.use)


def _cases_reads_end(subject: Subject, effort: Effort) -> Iterator[Case]:
    """Make a lazy case of each forward, which finds most, and one case in each other schedule."""
    others = [schedule for schedule in systematic_schedules(NUM_STREAMS) if schedule != LAZY]
    forwards = claiming_forwards(subject, "shared_reads_end")
    for seed in effort.seeds:
        cases = _lazy_cases(subject, forwards, Effort(seeds=(seed,)))
        yield from cases
        yield from reordered(cases, [*others, Schedule(OrderPolicy.RANDOM, seed)], seed)


def _lazy_cases(subject: Subject, forwards: Sequence[Forward], effort: Effort) -> Sequence[Case]:
    cases = rotated_cases("reads-end", subject, effort, forwards)
    return [replace(case, schedule=LAZY) for case in cases]


def _run_reads_end(rig: Rig, case: Case) -> Iterator[Fault]:
    return _faults_at(reads_end_of(rig.subject, case.batch_scenario.forward), rig, case)


def _faults_at(point: SharedReadsEnd, rig: Rig, case: Case) -> Iterator[Fault]:
    """Overwrite the shared tensors of each replay behind a point, and compare its output."""
    scenario = case.batch_scenario
    scenes = story(scenario, case.seed, _COUNTS_READS_END)
    expected = [rig.baseline(scene) for scene in scenes]
    with rig.running(case.schedule):
        graphs = Graphs(rig, scenario, point).capture()
        for scene, eager in zip(scenes, expected, strict=True):
            wrong = difference(_overwritten(graphs, scene), eager, graphs.tolerance)
            if wrong is None:
                continue
            # A replay that is wrong in any case is a fault of `replay`.
            undisturbed = graphs.launch(graphs.bring(scene)).attended()
            if (same := difference(undisturbed, eager, graphs.tolerance)) is not None:
                raise BaselineError(problem=f"in an undisturbed replay, {same}")
            text = f"page table and batch were overwritten behind {point.name}"
            yield Fault(what=f"{text}, and the replay shows it: {wrong}")
            return


def _overwritten(graphs: Graphs, scene: Scene) -> Tensor:
    """Replay a scene, and overwrite the shared tensors as early as the declared point allows."""
    on_device = graphs.bring(scene)
    batch = graphs.load(on_device)
    reads_done = graphs.replay(batch).reads_done
    assert reads_done is not None, "a replay with a declared point records its event"
    graphs.schedule_stream.wait_event(reads_done)
    with graphs.streams.using(graphs.schedule_stream):
        graphs.overwrite(batch)
    graphs.schedule_stream.synchronize()
    return graphs.result(on_device).attended()


def _hints_reads_end(subject: Subject, _ran: Sequence[Case], rig: Rig) -> Iterator[Hint]:
    """Test the points before the claimed ones, the earliest first, lazily."""
    ends = {forward: reads_end_of(subject, forward) for forward in replayed_of(subject)}
    late = [forward for forward, end in ends.items() if end > SharedReadsEnd.PRE_REPLAY]
    if not late or rig.device != DEVICE_NAME:
        return
    claimed = max(ends.values())
    cases = _lazy_cases(subject, late, HINTED)
    earlier = [end for end in SharedReadsEnd if end < claimed]
    if (point := first_right(earlier, _faults_at, rig, cases)) is not None:
        yield Hint(
            claim="shared_reads_end",
            what=f"declared {claimed.name}; what was written behind {point.name} changed "
            f"nothing in {len(cases)} cases of {listed(late)}; candidate for {point.name}",
        )


READS_END = Check(
    about=CATALOG["reads-end"],
    excuse=unless_claiming("shared_reads_end", _UNENDED),
    cases=_cases_reads_end,
    run=_run_reads_end,
    hints=_hints_reads_end,
    unfit=no_graphs,
)
