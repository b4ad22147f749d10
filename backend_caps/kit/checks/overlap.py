"""What a batch gives alone in plain order it gives behind others, overlapped, served and halved."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    cases_of,
    reordered,
    rotated_cases,
    scenario_of,
    unless_claimed,
)
from backend_caps.kit.checks.growth import quickly_collected
from backend_caps.kit.models import small_models
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
    scenario = scenario_of(case)
    story = story_of(rig.subject, scenario, case.seed)
    expected = [rig.baseline(turn.scene) for turn in story.turns]
    with rig.running():
        player = Player(rig, story, supply=partial(supplied, level=HostSeqLens.EXACT))
        wrong = _first_wrong(rig, scenario, map(player.output, story.turns), expected)
    if wrong is not None:
        place, differs = wrong
        earlier = ", ".join(own.forward.value for own in story.turns[:place])
        yield Fault(
            what=f"in turn {place}, {story.turns[place].forward.value} behind {earlier}, "
            f"{differs}; what a new backend gives was expected"
        )


def _first_wrong(
    rig: Rig, scenario: Scenario, found: Iterable[Tensor], expected: Sequence[Tensor]
) -> tuple[int, str] | None:
    """Return the first turn whose output differs, and how; later ones read what it wrote."""
    for place, (own, right) in enumerate(zip(found, expected, strict=True)):
        if (differs := rig.difference(own, right, scenario)) is not None:
            return place, differs
    return None


BATCHES_APART = Check(
    about=CATALOG["batches-apart"],
    cases=lambda own, effort: rotated_cases("batches-apart", own, list(Forward), effort, share=2),
    run=_run_apart,
)


_OWN = 3
"""The first stream of a backend's own."""
_RACE_ORDERS = (
    Schedule(OrderPolicy.LAZY),
    *(Schedule(OrderPolicy.STARVE, handle) for handle in (SCHEDULE, FORWARD, _OWN)),
)
_MOST_RACES = 2
"""Of one case: more are mostly the same one again."""
_NAMES = {HOST: "the host", SCHEDULE: "the schedule stream", FORWARD: "the forward stream"}


def _cases_races(subject: Subject, effort: Effort) -> Iterator[Case]:
    """Look for races in plain order, and let each other order meet another scenario a seed.

    All orders of all scenarios would take minutes. The sanitizer needs none: it goes by waits.
    """
    yield from rotated_cases("races", subject, list(Forward), effort, share=2)
    scenarios = list(scenarios_of(subject, list(Forward)))
    for seed in effort.seeds:
        drawn = random.Random(seed).sample(scenarios, len(scenarios))  # noqa: S311 - no secrets
        for place, schedule in enumerate((*_RACE_ORDERS, Schedule(OrderPolicy.RANDOM, seed))):
            scenario = drawn[place % len(drawn)]
            yield Case(check="races", scenario=scenario, schedule=schedule, seed=seed)


def _run_races(rig: Rig, case: Case) -> Iterator[Fault]:
    scenario = scenario_of(case)
    story = story_of(rig.subject, scenario, case.seed)
    expected = _in_plain_order(rig, story)
    with rig.running(case.schedule, check_races=case.schedule == EAGER) as simulation:
        found = Player(rig, story, overlapped=True).outputs()
    if (wrong := _first_wrong(rig, scenario, found, expected)) is not None:
        place, differs = wrong
        turn = f"in turn {place}, {story.turns[place].forward.value}"
        yield Fault(what=f"{turn}, {differs}; what plain order gives was expected")
    races = () if simulation is None else simulation.races
    yield from islice(_race_faults(races, rig.subject, _NAMES), _MOST_RACES)


def _in_plain_order(rig: Rig, story: Story) -> Sequence[Tensor]:
    """Play a story whose every turn the host waits for."""
    with rig.running():
        whole = baseline_of(lambda: torch.cat([*Player(rig, story).outputs()]))
    return torch.split(whole, [len(turn.scene.q) for turn in story.turns])


def _race_faults(
    races: Iterable[Race], subject: Subject, names: Mapping[int, str] | None = None
) -> Iterator[Fault]:
    """List races, each pair of lines once.

    Args:
        races: those of a run.
        subject: whose lines are named.
        names: of streams, for races of any code; None: only races with a line of the backend.
    """
    for race in {(own.first.site, own.second.site): own for own in races}.values():
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
"""Starves the stream that models run on, by its handle in an engine of its own."""


def _excuse_serving(subject: Subject) -> str | None:
    is_rounder = any(own.dtype != "float32" for own in scenarios_of(subject, _FORWARDS))
    reason = "it does not take float32, and rounder numbers may choose other tokens"
    return reason if is_rounder else None


def _cases_serving(subject: Subject, effort: Effort) -> Iterable[Case]:
    """Take each forward at one page size and in one order a seed, the next ones at the next."""
    by_forward = scenarios_by_forward(subject, _FORWARDS)
    for seed in effort.seeds:
        orders = (EAGER, Schedule(OrderPolicy.LAZY), _STARVED, Schedule(OrderPolicy.RANDOM, seed))
        # Half of the forwards a seed: an engine takes as long as twenty batches.
        for place, of_forward in list(enumerate(by_forward))[seed % 2 :: 2]:
            scenario = of_forward[(place + seed) // 2 % len(of_forward)]
            small = replace(scenario, num_heads=2, num_kv_heads=1)
            schedule = orders[(place + seed // 2) % len(orders)]
            yield Case(check="serving", scenario=small, schedule=schedule, seed=seed)


def _run_serving(rig: Rig, case: Case) -> Iterator[Fault]:
    scenario = scenario_of(case)
    trace = trace_of(rig.subject, scenario, case.seed)
    # Each capture of a graph collects garbage.
    with quickly_collected(), small_models(trace.algorithm, sizes=sizes_of(scenario)) as models:

        def served_plainly(own: ServerTrace) -> ServedTrace:
            with rig.running():
                return serve(rig, own, models)

        right = replace(baseline_of(lambda: served_plainly(trace.undrafted)), accepted={})
        if models.draft is not None:
            drafted = baseline_of(lambda: served_plainly(trace.plainly))
            right = replace(right, accepted=drafted.accepted)
        with rig.running(case.schedule, check_races=case.schedule == EAGER) as simulation:
            try:
                found = serve(rig, trace, models)
            except UnfitBackendError as error:  # as the backend itself declares
                raise BaselineError(problem=str(error)) from error
        races = () if simulation is None else simulation.races
    yield from islice(_faults(trace, found, right), 1)
    yield from islice(_race_faults(races, rig.subject), _MOST_RACES)


def _faults(trace: ServerTrace, found: ServedTrace, right: ServedTrace) -> Iterator[Fault]:
    """Compare with the plain loop: tokens, how many of each draft are accepted, what is free."""
    how = f"served {trace.told}, {found.num_retracted} retractions"
    for place, own in enumerate(trace.asked):
        made, expected = found.outputs[place], right.outputs[place]
        if made != (expected if own.aborted_at is None else expected[: len(made)]):
            what = f"request {place} got the tokens {made}; the plain loop makes {expected}"
            yield Fault(what=f"{how}, {what}")
    for number, of_request in found.accepted.items():
        known = right.accepted.get(number, {})
        for start, count in of_request.items():
            if known.get(start, count) != count:
                what = f"request {number} got {count} tokens of the draft behind its token {start}"
                plainly = f"in the plain loop the same draft gives {known[start]}"
                yield Fault(what=f"{how}, {what}; {plainly}")
    if found.left_over:
        yield Fault(what=f"{how}, {' and '.join(found.left_over)} did not come back")


SERVING = Check(
    about=CATALOG["serving"], excuse=_excuse_serving, cases=_cases_serving, run=_run_serving
)


_ORDERS = ("ABaba", "BAabb", "AaBba", "ABbaab")
"""Capitals prepare a half, small letters run a layer of it. The first is the engine's own."""
_COUNTS = (3, 4, 2, 3)
"""Requests of a batch: of an odd number the second half has one more."""
_HALVES = "AB"
_NUM_STREAMS = 3
"""The one of the layers, and one of each object's own."""


def _cases_two_batch(subject: Subject, effort: Effort) -> Iterable[Case]:
    """Try each forward eagerly or lazily, by turns, and one of them in each other order."""
    eager, lazy, *starved = systematic_schedules(_NUM_STREAMS)
    by_forward = scenarios_by_forward(subject, tuple(Forward))
    # Each forward at one page size, the next one at the next.
    scenarios = [own[place % len(own)] for place, own in enumerate(by_forward)]
    for seed in effort.seeds:
        cases = list(cases_of("two-batch", scenarios, Effort(seeds=(seed,))))
        yield from (replace(own, schedule=(eager, lazy)[seed % 2]) for own in cases)
        yield from reordered(cases, (*starved, Schedule(OrderPolicy.RANDOM, seed)), seed)


def _run_two_batch(rig: Rig, case: Case) -> Iterator[Fault]:
    scenario = scenario_of(case)
    dice, count = dice_for(scenario, case.seed), _COUNTS[case.seed % len(_COUNTS)]
    whole = draw_requests(scenario, dice, count, setting_seed=case.seed)
    # The same two objects run another batch behind it, whose halves are others.
    batches = (whole, whole.select(range(count - 1, min(1, count - 2) - 1, -1)))
    expected = [[rig.baseline(half) for half in _apart(batch)] for batch in batches]
    order = _ORDERS[case.seed % len(_ORDERS)]
    with rig.running(case.schedule):
        ran = list(_overlapped(rig, batches, order))
        found = [(number, half, on_host(output)) for number, half, output in ran]
    for number, half, output in found:
        if (differs := rig.difference(output, expected[number][half], scenario)) is not None:
            first, second = (part.batch.batch_size for part in _apart(batches[number]))
            yield Fault(
                what=f"half {_HALVES[half]} of a batch of {first} and {second} requests, run in "
                f"the order {order}: {differs}; what it gives alone was expected"
            )
            return


def _overlapped(
    rig: Rig, batches: Sequence[Scene], order: str
) -> Iterator[tuple[int, int, Tensor]]:
    """Run the halves of each batch in turns, in the same two objects.

    yields  the place of a batch, a half of it, and a layer's output, [T, Hq, Dv], device
    """
    on_device = [_laid_out(rig.supply(batch).on(rig.device), batch) for batch in batches]
    pools = on_device[0].pools
    backends = rig.build(pools), rig.build(pools)
    for number, own in enumerate(on_device):
        halves = _halves(replace(own, pools=pools))
        for step in order:
            half = _HALVES.index(step.upper())
            if step.isupper():
                backends[half].init_forward_metadata(halves[half].batch)
            else:
                # What a layer makes is read before the other half's turn, and never after it.
                yield number, half, halves[half].forward(backends[half]).clone()


def _laid_out(whole: Scene, drawn: Scene) -> Scene:
    """Give each half of a batch on the device a tree mask of its own, as an engine does."""
    first, second = (part.batch.tree_mask for part in _apart(drawn))
    if first is None or second is None:
        return whole
    masks = first.to(whole.q.device), second.to(whole.q.device)
    return replace(whole, batch=replace(whole.batch, tree_mask=None, half_masks=masks))


def _apart(whole: Scene) -> tuple[Scene, Scene]:
    """Take the requests of either half, as a batch of its own."""
    places = range(whole.batch.batch_size)
    middle = len(places) // 2
    return whole.select(places[:middle]), whole.select(places[middle:])


def _halves(whole: Scene) -> list[Scene]:
    """Cut a batch as the engine does: halves are views of it."""
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
