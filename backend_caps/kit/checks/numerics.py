"""Outputs are those of attention as it is defined, in float64, and the same bits each time.

The same for the same batch, and for a request in any batch.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch

from backend_caps.capability.kind import Phase, Role
from backend_caps.kit import Case, Check, Effort, Fault, Forward, Rig, Scenario, Subject, scenarios
from backend_caps.kit.check import EAGER, cases_by_seed, cases_of, scenario_of, unless_claimed
from backend_caps.kit.rig import baseline_of, difference, on_host
from backend_caps.kit.scenes import Scene, dice_of, reference_attention, sharing
from backend_caps.report.check_catalog import CATALOG
from backend_caps.simulator import OrderPolicy, Schedule


def fault_beside_float64(rig: Rig, case: Case) -> Iterator[Fault]:
    """Run a case's scene plainly, and compare it with float64.

    Every other seed has contexts share their first pages, where all are that long.
    """
    scenario = scenario_of(case)
    scene, told = scenarios.draw(scenario, case.seed), ""
    if case.seed % 2:
        scene, told = _shared(scene)
    output = rig.plain(scene)
    if output.dtype != scene.q.dtype:
        yield Fault(what=f"its output is {output.dtype}, of queries of {scene.q.dtype}")
    if (differs := rig.difference(output, reference_attention(scene), scenario)) is not None:
        lengths, new = scene.batch.seq_lens.tolist(), scene.counts
        contexts = f"contexts of {lengths} tokens, {new} of them new{told}"
        yield Fault(what=f"beside float64 {differs}; {contexts}")


def _shared(scene: Scene) -> tuple[Scene, str]:
    """Let contexts begin alike by as many whole pages as all have cached, and say by how much."""
    size = scene.pools.page_size
    num_tokens = min(cached for cached, _ in scene.requests) // size * size
    if num_tokens == 0 or len(scene.counts) == 1:
        return scene, ""
    return sharing(scene, num_tokens), f", the first {num_tokens} shared"


_LONG = 400
"""Tokens of a long context: over several blocks of most kernels, which add up parts of it."""
_HEADS = ((1, 1), (4, 4), (8, 1), (6, 2))
"""Heads of queries, and of keys and values, beside four to two."""
_TARGET = tuple(forward for forward in scenarios.CAUSAL if forward.role is Role.TARGET)


def _variations(subject: Subject, base: Scenario) -> Iterator[Scenario]:
    """Vary one thing at a time: dtype, head size, grouping, page, and how long contexts are."""
    yield from (replace(base, dtype=dtype) for dtype in scenarios.dtypes_of(subject)[1:])
    yield from (replace(base, head_size=size) for size in scenarios.head_sizes_of(subject)[1:])
    yield from (replace(base, num_heads=own, num_kv_heads=of_kv) for own, of_kv in _HEADS)
    yield from (replace(base, page_size=size) for size in scenarios.page_sizes_of(subject)[2:])
    yield replace(base, min_context_len=_LONG)


def _scenarios_numerics(subject: Subject, seed: int) -> Iterator[Scenario]:
    """Take each forward at two pages, and with all sizes drawn; then each variation, by turns.

    One seed takes the first variation of a prompt and the second of a decode or verify, the next
    seed the other way round: every other seed has each variation of both.
    """
    plain = list(scenarios.scenarios_of(subject, _TARGET))
    yield from plain
    dice = dice_of(seed)
    yield from (_combined(subject, own, dice) for own in plain)
    phases = (
        [own for own in plain if own.forward.phase is Phase.PREFILL],
        [own for own in plain if own.forward.phase is not Phase.PREFILL],
    )
    varied = zip(
        *(zip(*(_variations(subject, base) for base in bases), strict=True) for bases in phases),
        strict=True,
    )
    for number, of_phases in enumerate(varied):
        taken = of_phases[(number + seed) % len(of_phases)]
        yield taken[(number + seed) // len(of_phases) % len(taken)]


def _combined(subject: Subject, plain: Scenario, dice: random.Random) -> Scenario:
    """Draw all sizes at once: what is wrong of two together is right of each."""
    num_heads, num_kv_heads = dice.choice(_HEADS)
    return replace(
        plain,
        dtype=dice.choice(scenarios.dtypes_of(subject)),
        head_size=dice.choice(scenarios.head_sizes_of(subject)),
        page_size=dice.choice(scenarios.page_sizes_of(subject)),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
    )


NUMERICS = Check(
    about=CATALOG["numerics"],
    cases=partial(cases_by_seed, "numerics", _scenarios_numerics),
    run=fault_beside_float64,
)


_WIDTHS = (2, 3, 8)
"""Trees that servers use; and one as wide as claimed, where that is at most `_WIDEST`."""
_WIDEST = 16


def _excuse_roles(subject: Subject) -> str | None:
    if scenarios.roles_of(subject) <= {Role.TARGET} and scenarios.topk_of(subject) == 1:
        return "it claims the target's role alone, and no trees"
    return None


def _scenarios_roles(subject: Subject) -> Iterator[Scenario]:
    """Take the forwards of drafts and of trees, these in each width."""
    limit = scenarios.topk_of(subject)
    widths = sorted({own for own in (*_WIDTHS, min(limit, _WIDEST)) if 1 < own <= limit})
    for plain in scenarios.scenarios_of(subject, (Forward.DRAFT, Forward.TREE)):
        yield from (replace(plain, topk=width) for width in widths)
    yield from scenarios.scenarios_of(subject, (Forward.DRAFT_EXTEND,))
    if Role.DRAFT in scenarios.roles_of(subject) and limit == 1:
        # A draft step of a chain is a decode.
        yield from scenarios.scenarios_of(subject, (Forward.DECODE,))


ROLES = Check(
    about=CATALOG["roles"],
    excuse=_excuse_roles,
    cases=lambda own, effort: cases_of("roles", _scenarios_roles(own), effort),
    run=fault_beside_float64,
)


def _bit_scenarios(subject: Subject, seed: int) -> Iterator[Scenario]:
    """List scenarios for a seed: each forward, at one page after the other; then long contexts."""
    plain = list(scenarios.scenarios_of(subject, tuple(Forward)))
    of_forward = {own.forward: own for own in (plain[::-1] if seed % 2 else plain)}
    yield from of_forward.values()
    for forward in (Forward.PREFILL, Forward.DECODE, Forward.VERIFY):
        if forward in of_forward:
            yield replace(of_forward[forward], min_context_len=_LONG)


_ORDERS = (EAGER, Schedule(OrderPolicy.LAZY))
_TIMES_AGAIN = 2


def _cases_determinism(subject: Subject, effort: Effort) -> Iterator[Case]:
    """Take one order a seed, and each forward in it."""
    for case in cases_by_seed("determinism", _bit_scenarios, subject, effort):
        yield replace(case, schedule=_ORDERS[case.seed % len(_ORDERS)])


def _run_determinism(rig: Rig, case: Case) -> Iterator[Fault]:
    scene = scenarios.draw(scenario_of(case), case.seed)
    with rig.running(case.schedule):
        there = rig.supply(scene).on(rig.device)
        backend = rig.build(there.pools)
        expected = baseline_of(lambda: on_host(there.attend(backend)))
        again = [on_host(there.attend(backend)) for _ in range(_TIMES_AGAIN)]
        elsewhere = rig.eager(scene)
    for who, found in (*(("the same", one) for one in again), ("a new", elsewhere)):
        if (differs := difference(found, expected, 0.0)) is not None:
            yield Fault(what=f"the same batch again, in {who} backend: {differs}")
            return


DETERMINISM = Check(
    about=CATALOG["determinism"],
    excuse=unless_claimed("deterministic"),
    cases=_cases_determinism,
    run=_run_determinism,
)


def _run_invariance(rig: Rig, case: Case) -> Iterator[Fault]:
    scenario = scenario_of(case)
    dice = scenarios.dice_for(scenario, case.seed)
    scene = scenarios.draw_requests(scenario, dice, scenarios.MOST_REQUESTS, setting_seed=case.seed)
    expected = torch.split(rig.baseline(scene), scene.counts)
    for company in _companies(dice):
        some = scene.select(company)
        for request, found in zip(company, torch.split(rig.plain(some), some.counts), strict=True):
            if (differs := difference(found, expected[request], 0.0)) is not None:
                others = ", ".join(str(other) for other in company if other != request)
                beside = f"beside {others}" if others else "alone"
                bits = f"request {request} of {scenarios.MOST_REQUESTS} has other bits {beside}"
                yield Fault(what=f"{bits}: of its own {differs}")
                return


def _companies(dice: random.Random) -> Iterator[Sequence[int]]:
    """Draw requests and their order: one alone, all reversed, two, and three."""
    everybody = range(scenarios.MOST_REQUESTS)
    yield [dice.choice(everybody)]
    yield everybody[::-1]
    for count in range(2, scenarios.MOST_REQUESTS):
        yield dice.sample(everybody, count)


BATCH_INVARIANCE = Check(
    about=CATALOG["batch-invariance"],
    excuse=unless_claimed("batch_invariant"),
    cases=partial(cases_by_seed, "batch-invariance", _bit_scenarios),
    run=_run_invariance,
)
