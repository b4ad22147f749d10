"""The same bits for the same batch, and for a request in any batch."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from backend_caps.kit.check import Case, Check, Effort, Fault, cases_of, scenario_of
from backend_caps.kit.rig import Rig, baseline_of, difference, on_host
from backend_caps.kit.scenarios import (
    MOST_REQUESTS,
    Forward,
    Scenario,
    dice_for,
    draw,
    draw_requests,
    scenarios_of,
)
from backend_caps.kit.scenes import Scene
from backend_caps.kit.subject import Subject
from backend_caps.runtime.attention import AttentionBackend
from backend_caps.simulator import Schedule

_LONG = 400
"""Tokens of a long context: a kernel that adds up parts of one has several."""


def bit_scenarios(subject: Subject, seed: int) -> Iterator[Scenario]:
    """List scenarios for a seed: each forward, at one page after the other; then long contexts."""
    scenarios = list(scenarios_of(subject, tuple(Forward)))
    of_forward = {own.forward: own for own in (scenarios[::-1] if seed % 2 else scenarios)}
    yield from of_forward.values()
    for forward in (Forward.PREFILL, Forward.DECODE, Forward.VERIFY):
        if forward in of_forward:
            yield replace(of_forward[forward], min_context_len=_LONG)


def other_bits(found: Tensor, expected: Tensor) -> str | None:
    """Name the tokens whose outputs are not the same; None where all are.

    found, expected  [T, Hq, Dv], host
    """
    return difference(found, expected, 0.0)


_ORDERS = (Schedule.parse("eager"), Schedule.parse("lazy"))
_TIMES_AGAIN = 2


def _excuse_determinism(subject: Subject) -> str | None:
    return None if subject.claim("deterministic") is True else "it does not claim deterministic"


def _cases_determinism(subject: Subject, effort: Effort) -> Iterable[Case]:
    """Take one order a seed, and each forward in it."""
    for seed in effort.seeds:
        order = _ORDERS[seed % len(_ORDERS)]
        scenarios = bit_scenarios(subject, seed)
        yield from cases_of("determinism", scenarios, replace(effort, seeds=(seed,)), [order])


def _run_determinism(rig: Rig, case: Case) -> Iterator[Fault]:
    scenario = scenario_of(case)
    scene = draw(scenario, case.seed)
    with rig.running(case.schedule):
        there = rig.supply(scene).on(rig.device)
        backend = rig.build(there.pools)
        expected = baseline_of(lambda: _once(there, backend))
        again = [_once(there, backend) for _ in range(_TIMES_AGAIN)]
        elsewhere = rig.eager(scene)
    for who, found in (*(("the same", one) for one in again), ("a new", elsewhere)):
        differs = other_bits(found, expected)
        if differs is not None:
            yield Fault(what=f"the same batch again, in {who} backend: {differs}")
            return


def _once(scene: Scene, backend: AttentionBackend) -> Tensor:
    """Prepare and run a forward, and wait for it: [T, Hq, Dv], host."""
    backend.init_forward_metadata(scene.batch)
    return on_host(scene.forward(backend))


DETERMINISM = Check(
    code="determinism",
    claims=("deterministic",),
    title="The same batch gives the same bits.",
    proves="A batch that is run several times in one backend, and once in a new one, has outputs "
    "of the same bits, in each forward that is claimed, over short contexts and some of hundreds "
    "of tokens, with device work run as soon as it can be and as late.",
    cannot="What a real device's atomics do, unless it runs there; and another process, machine, "
    "or number of threads.",
    excuse=_excuse_determinism,
    cases=_cases_determinism,
    run=_run_determinism,
    after=("numerics", "inputs-untouched", "batches-apart", "races"),
)


def _excuse_invariance(subject: Subject) -> str | None:
    is_claimed = subject.claim("batch_invariant") is True
    return None if is_claimed else "it does not claim batch_invariant"


def _cases_invariance(subject: Subject, effort: Effort) -> Iterable[Case]:
    for seed in effort.seeds:
        yield from cases_of(
            "batch-invariance", bit_scenarios(subject, seed), replace(effort, seeds=(seed,))
        )


def _run_invariance(rig: Rig, case: Case) -> Iterator[Fault]:
    scenario = scenario_of(case)
    dice = dice_for(scenario, case.seed)
    scene = draw_requests(scenario, dice, MOST_REQUESTS, setting_seed=case.seed)
    expected = _of_requests(scene, rig.baseline(scene))
    for company in _companies(dice):
        some = scene.select(company)
        for request, found in zip(company, _of_requests(some, rig.plain(some)), strict=True):
            differs = other_bits(found, expected[request])
            if differs is not None:
                others = ", ".join(str(other) for other in company if other != request)
                beside = f"beside {others}" if others else "alone"
                yield Fault(
                    what=f"request {request} of {MOST_REQUESTS} has other bits {beside}: "
                    f"of its own {differs}"
                )
                return


def _companies(dice: random.Random) -> Iterator[Sequence[int]]:
    """Draw requests and their order: one alone, all reversed, two, and three."""
    everybody = range(MOST_REQUESTS)
    yield [dice.choice(everybody)]
    yield everybody[::-1]
    for count in range(2, MOST_REQUESTS):
        yield dice.sample(everybody, count)


def _of_requests(scene: Scene, output: Tensor) -> Sequence[Tensor]:
    """Cut an output [T, Hq, Dv] by requests."""
    return torch.split(output, list(scene.counts))


BATCH_INVARIANCE = Check(
    code="batch-invariance",
    claims=("batch_invariant",),
    title="A request's output is the same in every batch.",
    proves="Requests have outputs of the same bits among others, alone, among fewer, and in other "
    "places of the batch, in each forward that is claimed, over short contexts and some of "
    "hundreds of tokens.",
    cannot="Batches of more than a few requests, and what only a real device chooses by their "
    "number, unless it runs there.",
    excuse=_excuse_invariance,
    cases=_cases_invariance,
    run=_run_invariance,
    after=("numerics",),
)
