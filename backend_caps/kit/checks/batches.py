"""A batch leaves nothing behind, and the halves of one do not disturb each other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate

from torch import Tensor

from backend_caps.capability.vocabulary import HostSeqLens
from backend_caps.kit import Case, Check, Effort, Fault, Rig, Scenario, Subject, on_host, supplied
from backend_caps.kit.check import cases_of, reordered, rotated_cases, scenario_of, unless_claimed
from backend_caps.kit.probes.playback import Player
from backend_caps.kit.probes.stories import story_of
from backend_caps.kit.scenarios import Forward, dice_for, draw_requests, scenarios_by_forward
from backend_caps.kit.scenes import Scene
from backend_caps.report.check_catalog import CATALOG
from backend_caps.runtime.attention import AttentionBackend
from backend_caps.runtime.two_batch import split
from backend_caps.simulator import OrderPolicy, Schedule, systematic_schedules


def _cases_apart(subject: Subject, effort: Effort) -> Iterable[Case]:
    return rotated_cases("batches-apart", subject, list(Forward), effort, share=2)


def _run_apart(rig: Rig, case: Case) -> Iterator[Fault]:
    scenario = scenario_of(case)
    story = story_of(rig.subject, scenario, case.seed)
    expected = [rig.baseline(turn.scene) for turn in story.turns]
    with rig.running():
        player = Player(rig, story, supply=partial(supplied, level=HostSeqLens.EXACT))
        for place, turn in enumerate(story.turns):
            differs = rig.difference(player.output(turn), expected[place], scenario)
            if differs is not None:
                earlier = ", ".join(own.forward.value for own in story.turns[:place])
                yield Fault(
                    what=f"in turn {place}, {turn.forward.value} behind {earlier}, {differs}; "
                    f"what a new backend gives was expected"
                )
                # What comes after it reads what it wrote.
                return


BATCHES_APART = Check(about=CATALOG["batches-apart"], cases=_cases_apart, run=_run_apart)


_ORDERS = ("ABaba", "BAabb", "AaBba", "ABbaab")
"""Capitals prepare a half, small letters run a layer of it. The first is the engine's own."""
_COUNTS = (3, 4, 2, 3)
"""Requests of a batch: of an odd number the second half has one more."""
_HALVES = "AB"
_NUM_STREAMS = 3
"""The one of the layers, and one of each object's own."""
_SCHEDULES = systematic_schedules(_NUM_STREAMS)


_Outputs = list[tuple[int, Tensor]]
"""The half and the output, [T, Hq, Dv], of each layer that ran."""


def _cases_two_batch(subject: Subject, effort: Effort) -> Iterable[Case]:
    """Try each forward eagerly or lazily, by turns, and one of them in each other order."""
    eager, lazy, *starved = _SCHEDULES
    for seed in effort.seeds:
        cases = list(cases_of("two-batch", _scenarios(subject), Effort(seeds=(seed,))))
        yield from (replace(own, schedule=(eager, lazy)[seed % 2]) for own in cases)
        yield from reordered(cases, (*starved, Schedule(OrderPolicy.RANDOM, seed)), seed)


def _scenarios(subject: Subject) -> Iterator[Scenario]:
    """Take each forward at one page size, the next one at the next."""
    for place, of_forward in enumerate(scenarios_by_forward(subject, tuple(Forward))):
        yield of_forward[place % len(of_forward)]


def _run_two_batch(rig: Rig, case: Case) -> Iterator[Fault]:
    scenario = scenario_of(case)
    dice, count = dice_for(scenario, case.seed), _COUNTS[case.seed % len(_COUNTS)]
    whole = draw_requests(scenario, dice, count, setting_seed=case.seed)
    # The same two objects run another batch behind it, whose halves are others.
    batches = (whole, whole.select(range(count - 1, min(1, count - 2) - 1, -1)))
    expected = [[rig.baseline(half) for half in _apart(batch)] for batch in batches]
    order = _ORDERS[case.seed % len(_ORDERS)]
    with rig.running(case.schedule):
        found = [
            [(half, on_host(output)) for half, output in of_batch]
            for of_batch in _overlapped(rig, batches, order)
        ]
    for batch, of_batch, right in zip(batches, found, expected, strict=True):
        for half, output in of_batch:
            if (differs := rig.difference(output, right[half], scenario)) is not None:
                yield Fault(what=_told(batch, half, order, differs))
                return


def _told(batch: Scene, half: int, order: str, differs: str) -> str:
    first, second = (len(part.counts) for part in _apart(batch))
    return (
        f"half {_HALVES[half]} of a batch of {first} and {second} requests, run in the order "
        f"{order}: {differs}; what it gives alone was expected"
    )


def _overlapped(rig: Rig, batches: Sequence[Scene], order: str) -> list[_Outputs]:
    """Run the halves of each batch in turns, in the same two objects."""
    on_device = [_laid_out(rig.supply(batch).on(rig.device), batch) for batch in batches]
    pools = on_device[0].pools
    backends = rig.build(pools), rig.build(pools)
    return [_in_turns(backends, _halves(replace(own, pools=pools)), order) for own in on_device]


def _laid_out(whole: Scene, drawn: Scene) -> Scene:
    """Give each half of a batch on the device a tree mask of its own, as an engine does."""
    first, second = (part.batch.tree_mask for part in _apart(drawn))
    if first is None or second is None:
        return whole
    masks = first.to(whole.q.device), second.to(whole.q.device)
    return replace(whole, batch=replace(whole.batch, tree_mask=None, half_masks=masks))


def _in_turns(
    backends: Sequence[AttentionBackend], halves: Sequence[Scene], order: str
) -> _Outputs:
    ran: _Outputs = []
    for step in order:
        half = _HALVES.index(step.upper())
        if step.isupper():
            backends[half].init_forward_metadata(halves[half].batch)
        else:
            # What a layer makes is read before the other half's turn, and never after it.
            ran.append((half, halves[half].forward(backends[half]).clone()))
    return ran


def _apart(whole: Scene) -> tuple[Scene, Scene]:
    """Take the requests of either half, as a batch of its own."""
    num_requests = len(whole.counts)
    middle = num_requests // 2
    return whole.select(range(middle)), whole.select(range(middle, num_requests))


def _halves(whole: Scene) -> list[Scene]:
    """Cut a batch as the engine does: halves are views of it."""
    first, second = split(whole.batch)
    middle = first.batch_size
    cut = [0, *accumulate(whole.counts)][middle]
    places = (slice(0, middle), slice(0, cut)), (slice(middle, None), slice(cut, None))
    return [
        replace(
            whole,
            batch=batch,
            q=whole.q[tokens],
            k=whole.k[tokens],
            v=whole.v[tokens],
            contexts=whole.contexts[requests],
            counts=whole.counts[requests],
            visible=whole.visible[requests],
        )
        for batch, (requests, tokens) in zip((first, second), places, strict=True)
    ]


TWO_BATCH = Check(
    about=CATALOG["two-batch"],
    excuse=unless_claimed("two_batch_overlap"),
    cases=_cases_two_batch,
    run=_run_two_batch,
)
