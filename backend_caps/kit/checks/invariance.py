"""A request's output does not depend on who is beside it, where that is claimed."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from backend_caps.kit.check import Case, Check, Effort, Fault, cases_of
from backend_caps.kit.probes.bits import bit_scenarios, other_bits
from backend_caps.kit.rig import Rig
from backend_caps.kit.scenarios import MOST_REQUESTS, dice_for, draw_requests
from backend_caps.kit.scenes import Scene
from backend_caps.kit.subject import Subject

_CODE = "batch-invariance"


def _excuse(subject: Subject) -> str | None:
    is_claimed = subject.claim("batch_invariant") is True
    return None if is_claimed else "it does not claim batch_invariant"


def _cases(subject: Subject, effort: Effort) -> Iterable[Case]:
    for seed in effort.seeds:
        yield from cases_of(_CODE, bit_scenarios(subject, seed), replace(effort, seeds=(seed,)))


def _run(rig: Rig, case: Case) -> Iterator[Fault]:
    assert case.scenario is not None, "each case has batches"
    dice = dice_for(case.scenario, case.seed)
    scene = draw_requests(case.scenario, dice, MOST_REQUESTS, setting_seed=case.seed)
    expected = _of_requests(scene, rig.baseline(scene))
    for company in _companies(dice):
        some = scene.select(company)
        for request, found in zip(company, _of_requests(some, rig.plain(some)), strict=True):
            differs = other_bits(found, expected[request])
            if differs is not None:
                beside = [other for other in company if other != request]
                yield Fault(
                    what=f"request {request} of {MOST_REQUESTS} has other bits {_beside(beside)}: "
                    f"of its own {differs}"
                )
                return


def _companies(dice: random.Random) -> Iterator[Sequence[int]]:
    """Draw who is there, and in which order: one alone, all the other way round, two, and three."""
    everybody = range(MOST_REQUESTS)
    yield [dice.choice(everybody)]
    yield everybody[::-1]
    for count in range(2, MOST_REQUESTS):
        yield dice.sample(everybody, count)


def _beside(others: Sequence[int]) -> str:
    return f"beside {', '.join(map(str, others))}" if others else "alone"


def _of_requests(scene: Scene, output: Tensor) -> Sequence[Tensor]:
    """Cut an output [T, Hq, Dv] by requests."""
    return torch.split(output, list(scene.counts))


CHECK = Check(
    code=_CODE,
    claims=("batch_invariant",),
    title="A request's output is the same in every batch.",
    proves="Requests have outputs of the same bits among others, alone, among fewer, and in other "
    "places of the batch, in each forward that is claimed, over short contexts and some of "
    "hundreds of tokens.",
    cannot="Batches of more than a few requests, and what only a real device chooses by their "
    "number, unless it runs there.",
    excuse=_excuse,
    cases=_cases,
    run=_run,
    after=("numerics",),
)
