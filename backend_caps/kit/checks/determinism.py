"""The same bits for the same batch, and for a request in any batch."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from backend_caps.kit.check import (
    Case,
    Check,
    Effort,
    Fault,
    cases_of,
    scenario_of,
    unless_claimed,
)
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
from backend_caps.report.check_catalog import CATALOG
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


_ORDERS = (Schedule.parse("eager"), Schedule.parse("lazy"))
_TIMES_AGAIN = 2


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
        differs = difference(found, expected, 0.0)
        if differs is not None:
            yield Fault(what=f"the same batch again, in {who} backend: {differs}")
            return


def _once(scene: Scene, backend: AttentionBackend) -> Tensor:
    """Prepare and run a forward, and wait for it: [T, Hq, Dv], host."""
    backend.init_forward_metadata(scene.batch)
    return on_host(scene.forward(backend))


DETERMINISM = Check(
    about=CATALOG["determinism"],
    excuse=unless_claimed("deterministic"),
    cases=_cases_determinism,
    run=_run_determinism,
)


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
            differs = difference(found, expected[request], 0.0)
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
    about=CATALOG["batch-invariance"],
    excuse=unless_claimed("batch_invariant"),
    cases=_cases_invariance,
    run=_run_invariance,
)
