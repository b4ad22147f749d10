"""Checks that batches give the same in sequence, overlapped, served by an engine, and halved."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor

from backend_caps.capability.vocabulary import HostSeqLens
from backend_caps.kit import BaselineError, Case, Effort, Fault, Forward, Rig, Scenario, Subject
from backend_caps.kit.check import (
    EAGER,
    Check,
    reordered,
    rotated_cases,
    spread_cases,
    unless_claimed,
)
from backend_caps.kit.checks.growth import quickly_collected
from backend_caps.kit.dimensions import rotated
from backend_caps.kit.models import SmallModels, small_models
from backend_caps.kit.probes.attention_record import AttentionRecord
from backend_caps.kit.probes.playback import FORWARD, SCHEDULE, Player
from backend_caps.kit.probes.server_traces import (
    ServedTrace,
    ServerTrace,
    serve,
    sizes_of,
    trace_of,
)
from backend_caps.kit.probes.stories import Story, story_of
from backend_caps.kit.rig import baseline_of, on_host, supplied
from backend_caps.kit.scenarios import dice_for, draw_requests, scenarios_by_forward, scenarios_of
from backend_caps.kit.scenes import Scene
from backend_caps.report.check_catalog import CATALOG
from backend_caps.runtime.errors import UnfitBackendError
from backend_caps.runtime.two_batch import split
from backend_caps.simulator import HOST, Access, OrderPolicy, Race, Schedule, systematic_schedules


def _run_apart(rig: Rig, case: Case) -> Iterator[Fault]:
    scenario = case.batch_scenario
    story = story_of(rig.subject, scenario, case.seed)
    expected = [rig.baseline(turn.scene) for turn in story.turns]
    with rig.running():
        player = Player(rig, story, supply=partial(supplied, level=HostSeqLens.EXACT))
        wrong = _first_wrong(rig, scenario, map(player.output, story.turns), expected)
    if wrong is not None:
        place, differs = wrong
        earlier = ", ".join(turn.forward.value for turn in story.turns[:place])
        yield Fault(
            what=f"in turn {place}, {story.turns[place].forward.value} behind {earlier}, "
            f"{differs}; what a new backend gives was expected"
        )


def _first_wrong(
    rig: Rig, scenario: Scenario, outputs: Iterable[Tensor], expected: Sequence[Tensor]
) -> tuple[int, str] | None:
    """Return the index of the first wrong turn, and the difference.

    Later turns read the KV cache that it wrote, so they say nothing.
    """
    for place, (output, right) in enumerate(zip(outputs, expected, strict=True)):
        if (differs := rig.difference(output, right, scenario)) is not None:
            return place, differs
    return None


BATCHES_APART = Check(
    about=CATALOG["batches-apart"],
    cases=lambda subject, effort: rotated_cases("batches-apart", subject, effort, share=2),
    run=_run_apart,
)


_BACKEND = 3
"""The handle of the first stream that a backend makes."""
_RACE_SCHEDULES = (
    Schedule(OrderPolicy.LAZY),
    *(Schedule(OrderPolicy.STARVE, handle) for handle in (SCHEDULE, FORWARD, _BACKEND)),
)
_MOST_RACES = 2
"""Races that a case reports: more mostly have the same cause."""
_NAMES = {HOST: "the host", SCHEDULE: "the schedule stream", FORWARD: "the forward stream"}


def _cases_races(subject: Subject, effort: Effort) -> Iterator[Case]:
    """Make eager cases for the sanitizer, and a case in each other schedule and seed.

    All schedules of all scenarios would take minutes. The sanitizer finds races in the eager
    schedule, too: it tests which waits order two accesses, not when they run.
    """
    yield from rotated_cases("races", subject, effort, share=2)
    scenarios = list(scenarios_of(subject, list(Forward)))
    for seed in effort.seeds:
        sample = random.Random(seed).sample(scenarios, len(scenarios))  # noqa: S311 - no secrets
        drawn = list(rotated(sample, seed, subject))
        for place, schedule in enumerate((*_RACE_SCHEDULES, Schedule(OrderPolicy.RANDOM, seed))):
            scenario = drawn[place % len(drawn)]
            yield Case(check="races", scenario=scenario, schedule=schedule, seed=seed)


def _run_races(rig: Rig, case: Case) -> Iterator[Fault]:
    scenario = case.batch_scenario
    story = story_of(rig.subject, scenario, case.seed)
    expected = _in_plain_order(rig, story)
    with rig.running(case.schedule, check_races=case.schedule == EAGER) as simulation:
        outputs = Player(rig, story, overlapped=True).outputs()
    if (wrong := _first_wrong(rig, scenario, outputs, expected)) is not None:
        place, differs = wrong
        turn = f"in turn {place}, {story.turns[place].forward.value}"
        yield Fault(what=f"{turn}, {differs}; what plain order gives was expected")
    races = () if simulation is None else simulation.races
    yield from islice(_race_faults(races, rig.subject, _NAMES), _MOST_RACES)


def _in_plain_order(rig: Rig, story: Story) -> Sequence[Tensor]:
    """Play a story eagerly; the host waits for each turn."""
    with rig.running():
        whole = baseline_of(lambda: torch.cat([*Player(rig, story).outputs()]))
    return torch.split(whole, [len(turn.scene.q) for turn in story.turns])


def _race_faults(
    races: Iterable[Race], subject: Subject, names: Mapping[int, str] | None = None
) -> Iterator[Fault]:
    """List races, each pair of lines once.

    Args:
        races: the races of a run.
        subject: the backend, a line of which becomes the fault's site.
        names: names of streams, to report races of any code; None: only races with a line of the
            backend.
    """
    for race in {(each.first.site, each.second.site): each for each in races}.values():
        sides = race.first, race.second
        site = next((side.site for side in sides if subject.owns(side.site.file)), None)
        if site is not None or names is not None:
            first, second = (_access_text(side, names) for side in sides)
            what = f"nothing orders {first}, and {second}; a wait between them was expected"
            yield Fault(what=what, site=site)


def _access_text(side: Access, names: Mapping[int, str] | None) -> str:
    kind = "the write" if side.is_write else "the read"
    stream = "" if names is None else f" on {names.get(side.stream, f'stream {side.stream}')}"
    return f"{kind} by {side.operator}{stream} at {Path(side.site.file).name}:{side.site.line}"


RACES = Check(about=CATALOG["races"], cases=_cases_races, run=_run_races)


_FORWARDS = (Forward.DECODE, Forward.MIXED, Forward.VERIFY, Forward.TREE)
_STARVED = Schedule(OrderPolicy.STARVE, 2)
"""Starves the forward stream, by its handle in an `Engine`."""


def _excuse_serving(subject: Subject) -> str | None:
    is_coarser = any(each.dtype != "float32" for each in scenarios_of(subject, _FORWARDS))
    reason = "it does not take float32, and rounder numbers may choose other tokens"
    return reason if is_coarser else None


def _cases_serving(subject: Subject, effort: Effort) -> Iterable[Case]:
    """Make a case of every other forward per seed; page size and schedule rotate."""
    by_forward = scenarios_by_forward(subject, _FORWARDS)
    for seed in effort.seeds:
        orders = (EAGER, Schedule(OrderPolicy.LAZY), _STARVED, Schedule(OrderPolicy.RANDOM, seed))
        # Half of the forwards a seed: an engine takes as long as twenty batches.
        for place, scenarios in list(enumerate(by_forward))[seed % 2 :: 2]:
            scenario = scenarios[(place + seed) // 2 % len(scenarios)]
            small = replace(scenario, num_heads=2, num_kv_heads=1)
            schedule = orders[(place + seed // 2) % len(orders)]
            yield Case(check="serving", scenario=small, schedule=schedule, seed=seed)


def _run_serving(rig: Rig, case: Case) -> Iterator[Fault]:
    scenario = case.batch_scenario
    trace = trace_of(rig.subject, scenario, case.seed)
    # Each capture of a graph collects garbage, which would scan all objects of the process.
    with quickly_collected(), small_models(trace.algorithm, sizes=sizes_of(scenario)) as models:
        record = AttentionRecord(rig.subject)
        tolerance = rig.subject.tolerance("float32")

        def served_plainly(plain: ServerTrace) -> ServedTrace:
            with rig.running():
                served = serve(rig, plain, models, record)
                if (differs := record.first_difference(tolerance)) is not None:
                    wrong.append(f"served {plain.summary}, by the plain loop, in {differs}")
                return served

        wrong: list[str] = []
        right = replace(baseline_of(lambda: served_plainly(trace.undrafted)), accepted={})
        if models.draft is not None:
            drafted = baseline_of(lambda: served_plainly(trace.plain))
            right = replace(right, accepted=drafted.accepted)
        if wrong:
            yield Fault(what=wrong[0])
            return
        with rig.running(case.schedule, check_races=case.schedule == EAGER) as simulation:
            try:
                served = serve(rig, trace, models)
            except UnfitBackendError as error:  # the declaration rules it out: no false claim
                raise BaselineError(problem=str(error)) from error
        races = () if simulation is None else simulation.races
        for fault in islice(_faults(trace, served, right), 1):
            yield replace(fault, what=f"{fault.what}{_place_of(rig, case, trace, models)}")
    yield from islice(_race_faults(races, rig.subject), _MOST_RACES)


def _place_of(rig: Rig, case: Case, trace: ServerTrace, models: SmallModels) -> str:
    """Serve once more, and name the first layer, request and position that differ from float64."""
    record = AttentionRecord(rig.subject)
    differs = None
    with suppress(Exception), rig.running(case.schedule):
        serve(rig, trace, models, record)
        differs = record.first_difference(rig.subject.tolerance("float32"))
    return "; no layer outside of a graph differs" if differs is None else f"; first in {differs}"


def _faults(trace: ServerTrace, served: ServedTrace, right: ServedTrace) -> Iterator[Fault]:
    """Compare a run with the plain loop: tokens, accepted drafts, and leaked rows or pages."""
    how = f"served {trace.summary}, {served.num_retracted} retractions"
    for place, request in enumerate(trace.requests):
        output, expected = served.outputs[place], right.outputs[place]
        if output != (expected if request.aborted_at is None else expected[: len(output)]):
            what = f"request {place} got the tokens {output}; the plain loop makes {expected}"
            yield Fault(what=f"{how}, {what}")
    for number, accepted in served.accepted.items():
        expected_counts = right.accepted.get(number, {})
        for start, count in accepted.items():
            if (expected_count := expected_counts.get(start, count)) != count:
                what = f"request {number} got {count} tokens of the draft behind its token {start}"
                plainly = f"in the plain loop the same draft gives {expected_count}"
                yield Fault(what=f"{how}, {what}; {plainly}")
    if served.leaks:
        yield Fault(what=f"{how}, {' and '.join(served.leaks)} did not come back")


SERVING = Check(
    about=CATALOG["serving"], excuse=_excuse_serving, cases=_cases_serving, run=_run_serving
)


_ORDERS = ("ABaba", "BAabb", "AaBba", "ABbaab")
"""Orders of work: capitals prepare a half, small letters run a layer of it. The engine runs the
first order."""
_COUNTS = (3, 4, 2, 3)
"""Requests of a batch: of an odd number the second half has one more."""
_HALVES = "AB"
_NUM_STREAMS = 3
"""The stream of the layers, and one that each of the two backend objects makes."""


def _cases_two_batch(subject: Subject, effort: Effort) -> Iterable[Case]:
    """Make an eager or lazy case of each forward, and one case in each other schedule."""
    eager, lazy, *starved = systematic_schedules(_NUM_STREAMS)
    by_forward = scenarios_by_forward(subject, tuple(Forward))
    # Page sizes alternate between the forwards.
    scenarios = [group[place % len(group)] for place, group in enumerate(by_forward)]
    for seed in effort.seeds:
        cases = list(spread_cases("two-batch", scenarios, subject, Effort(seeds=(seed,))))
        yield from (replace(case, schedule=(eager, lazy)[seed % 2]) for case in cases)
        yield from reordered(cases, (*starved, Schedule(OrderPolicy.RANDOM, seed)), seed)


def _run_two_batch(rig: Rig, case: Case) -> Iterator[Fault]:
    scenario = case.batch_scenario
    dice, count = dice_for(scenario, case.seed), _COUNTS[case.seed % len(_COUNTS)]
    whole = draw_requests(scenario, dice, count, setting_seed=case.seed)
    # The same two objects run another batch behind it, so state of the first one shows.
    batches = (whole, whole.select(range(count - 1, min(1, count - 2) - 1, -1)))
    expected = [[rig.baseline(half) for half in _halves_of(batch)] for batch in batches]
    order = _ORDERS[case.seed % len(_ORDERS)]
    with rig.running(case.schedule):
        # Copied only once all have run: a copy to the host would wait, and hide an overlap.
        on_device = list(_overlapped(rig, batches, order))
        outputs = [(number, half, on_host(output)) for number, half, output in on_device]
    for number, half, output in outputs:
        if (differs := rig.difference(output, expected[number][half], scenario)) is not None:
            first, second = (part.batch.batch_size for part in _halves_of(batches[number]))
            yield Fault(
                what=f"half {_HALVES[half]} of a batch of {first} and {second} requests, run in "
                f"the order {order}: {differs}; what it gives alone was expected"
            )
            return


def _overlapped(rig: Rig, scenes: Sequence[Scene], order: str) -> Iterator[tuple[int, int, Tensor]]:
    """Run the halves of each batch by turns, in the same two backend objects.

    yields  the index of a batch, of a half of it, and a layer's output, [T, Hq, Dv], device
    """
    wholes = [_with_half_masks(rig.supply(batch).on(rig.device), batch) for batch in scenes]
    pools = wholes[0].pools
    backends = rig.build(pools), rig.build(pools)
    for number, whole in enumerate(wholes):
        halves = _split(replace(whole, pools=pools))
        for step in order:
            half = _HALVES.index(step.upper())
            if step.isupper():
                backends[half].init_forward_metadata(halves[half].batch)
            else:
                # The engine reads a layer's output before the other half runs, which may reuse it.
                yield number, half, halves[half].forward(backends[half]).clone()


def _with_half_masks(whole: Scene, drawn: Scene) -> Scene:
    """Replace the tree mask of a batch on the device by one for each half, as the engine does."""
    first, second = (part.batch.tree_mask for part in _halves_of(drawn))
    if first is None or second is None:
        return whole
    masks = first.to(whole.q.device), second.to(whole.q.device)
    return replace(whole, batch=replace(whole.batch, tree_mask=None, half_masks=masks))


def _halves_of(whole: Scene) -> tuple[Scene, Scene]:
    """Make a separate batch of each half's requests."""
    places = range(whole.batch.batch_size)
    middle = len(places) // 2
    return whole.select(places[:middle]), whole.select(places[middle:])


def _split(whole: Scene) -> list[Scene]:
    """Split a batch as the engine does: the halves are views of it."""
    first, second = split(whole.batch)
    cut = first.num_tokens
    parts = (first, slice(0, cut)), (second, slice(cut, None))
    return [  # a forward reads none of the other fields
        replace(whole, batch=batch, q=whole.q[tokens], k=whole.k[tokens], v=whole.v[tokens])
        for batch, tokens in parts
    ]


TWO_BATCH = Check(
    about=CATALOG["two-batch"],
    excuse=unless_claimed("two_batch_overlap"),
    cases=_cases_two_batch,
    run=_run_two_batch,
)
