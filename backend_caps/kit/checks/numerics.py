"""Checks of outputs: beside attention in float64, and bit for bit.

Bits are compared between runs of the same batch, and of a request in several batches.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch

from backend_caps.capability.kind import Phase, Role
from backend_caps.kit import Case, Check, Effort, Fault, Forward, Rig, Scenario, Subject, scenarios
from backend_caps.kit.check import EAGER, cases_by_seed, spread_cases, unless_claimed
from backend_caps.kit.rig import baseline_of, difference, on_host
from backend_caps.kit.scenes import Scene, dice_of, reference_attention, sharing
from backend_caps.report.check_catalog import CATALOG
from backend_caps.simulator import OrderPolicy, Schedule


def fault_beside_float64(rig: Rig, case: Case) -> Iterator[Fault]:
    """Run a case's scene by `Rig.plain`, and compare it with float64.

    At odd seeds the contexts share their first pages, where each has a whole cached page.
    """
    scenario = case.batch_scenario
    scene, shared = scenarios.draw(scenario, case.seed), ""
    if case.seed % 2:
        scene, shared = _shared(scene)
    output = rig.plain(scene)
    if output.dtype != scene.q.dtype:
        yield Fault(what=f"its output is {output.dtype}, of queries of {scene.q.dtype}")
    if (differs := rig.difference(output, reference_attention(scene), scenario)) is not None:
        lengths, new = scene.batch.seq_lens.tolist(), scene.counts
        contexts = f"contexts of {lengths} tokens, {new} of them new{shared}"
        yield Fault(what=f"beside float64 {differs}; {contexts}")


def _shared(scene: Scene) -> tuple[Scene, str]:
    """Share the whole pages that all contexts have cached; return the scene and a description."""
    size = scene.pools.page_size
    num_tokens = min(cached for cached, _ in scene.requests) // size * size
    if num_tokens == 0 or len(scene.counts) == 1:
        return scene, ""
    return sharing(scene, num_tokens), f", the first {num_tokens} shared"


_LONG = 400
"""Tokens of a long context: several blocks of most kernels, which sum up over blocks."""
_EDGES = (1024, 4096, 512, 2048)
"""Ends of kernels' blocks that longest contexts of some cases are at."""
_TARGET = tuple(forward for forward in scenarios.CAUSAL if forward.role is Role.TARGET)


def _variations(subject: Subject, base: Scenario) -> Iterator[Scenario]:
    """Vary one size at a time: dtype, head size, page size, context length."""
    yield from (replace(base, dtype=dtype) for dtype in scenarios.dtypes_of(subject)[1:])
    yield from (replace(base, head_size=size) for size in scenarios.head_sizes_of(subject)[1:])
    yield from (replace(base, page_size=size) for size in scenarios.page_sizes_of(subject)[2:])
    yield replace(base, min_context_len=_LONG)


def _scenarios_numerics(subject: Subject, seed: int) -> Iterator[Scenario]:
    """List each forward at two page sizes, each with all sizes drawn, and then each variation.

    A variation is applied to a prefill at one seed and to a decode or verify at the next.
    """
    plain = list(scenarios.scenarios_of(subject, _TARGET))
    yield from plain
    dice = dice_of(seed)
    yield from (_combined(subject, scenario, dice) for scenario in plain)
    phases = (
        [scenario for scenario in plain if scenario.forward.phase is Phase.PREFILL],
        [scenario for scenario in plain if scenario.forward.phase is not Phase.PREFILL],
    )
    varied = zip(
        *(zip(*(_variations(subject, base) for base in bases), strict=True) for bases in phases),
        strict=True,
    )
    for number, by_phase in enumerate(varied):
        variations = by_phase[(number + seed) % len(by_phase)]
        yield variations[(number + seed) // len(by_phase) % len(variations)]
    yield from _at_edges(plain, seed)


def _at_edges(plain: Sequence[Scenario], seed: int) -> Iterator[Scenario]:
    """List each forward with contexts around the ends of blocks, up to one that seeds rotate."""
    by_forward = {scenario.forward: scenario for scenario in plain}
    for number, base in enumerate(by_forward.values()):
        edge = _EDGES[(number + seed) % len(_EDGES)]
        # The reference of a prompt is as large as its square.
        longest = min(_EDGES) if base.forward is Forward.PREFILL else edge
        yield replace(base, min_context_len=longest + 1)


def _combined(subject: Subject, plain: Scenario, dice: random.Random) -> Scenario:
    """Draw all sizes at once, as some faults need two unusual sizes together."""
    return replace(
        plain,
        dtype=dice.choice(scenarios.dtypes_of(subject)),
        head_size=dice.choice(scenarios.head_sizes_of(subject)),
        page_size=dice.choice(scenarios.page_sizes_of(subject)),
    )


NUMERICS = Check(
    about=CATALOG["numerics"],
    cases=partial(cases_by_seed, "numerics", _scenarios_numerics),
    run=fault_beside_float64,
)


_WIDTHS = (2, 3, 8)
"""Widths of trees that servers use; the claimed width, up to `_WIDEST`, comes on top."""
_WIDEST = 16


def _excuse_roles(subject: Subject) -> str | None:
    if scenarios.roles_of(subject) <= {Role.TARGET} and scenarios.topk_of(subject) == 1:
        return "it claims the target's role alone, and no trees"
    return None


def _scenarios_roles(subject: Subject) -> Iterator[Scenario]:
    """List the draft forwards, and the tree forwards at each width."""
    limit = scenarios.topk_of(subject)
    widths = sorted({width for width in (*_WIDTHS, min(limit, _WIDEST)) if 1 < width <= limit})
    for plain in scenarios.scenarios_of(subject, (Forward.DRAFT, Forward.TREE)):
        yield from (replace(plain, topk=width) for width in widths)
    yield from scenarios.scenarios_of(subject, (Forward.DRAFT_EXTEND,))
    if Role.DRAFT in scenarios.roles_of(subject) and limit == 1:
        # A draft step of a chain is a decode.
        yield from scenarios.scenarios_of(subject, (Forward.DECODE,))


ROLES = Check(
    about=CATALOG["roles"],
    excuse=_excuse_roles,
    cases=lambda subject, effort: spread_cases("roles", _scenarios_roles(subject), subject, effort),
    run=fault_beside_float64,
)


def _bit_scenarios(subject: Subject, seed: int) -> Iterator[Scenario]:
    """List each forward at one page size, which alternates by seed; then long contexts."""
    plain = list(scenarios.scenarios_of(subject, tuple(Forward)))
    # A later scenario of a forward replaces an earlier one, which has the other page size.
    by_forward = {scenario.forward: scenario for scenario in (plain[::-1] if seed % 2 else plain)}
    yield from by_forward.values()
    for forward in (Forward.PREFILL, Forward.DECODE, Forward.VERIFY):
        if forward in by_forward:
            yield replace(by_forward[forward], min_context_len=_LONG)


_ORDERS = (EAGER, Schedule(OrderPolicy.LAZY))
_TIMES_AGAIN = 2


def _cases_determinism(subject: Subject, effort: Effort) -> Iterator[Case]:
    """Make a case of each forward and seed; the schedule alternates by seed."""
    for case in cases_by_seed("determinism", _bit_scenarios, subject, effort):
        yield replace(case, schedule=_ORDERS[case.seed % len(_ORDERS)])


def _run_determinism(rig: Rig, case: Case) -> Iterator[Fault]:
    scene = scenarios.draw(case.batch_scenario, case.seed)
    with rig.running(case.schedule):
        supplied = rig.supply(scene).on(rig.device)
        backend = rig.build(supplied.pools)
        expected = baseline_of(lambda: on_host(supplied.attend(backend)))
        outputs = [("the same", on_host(supplied.attend(backend))) for _ in range(_TIMES_AGAIN)]
        outputs.append(("a new", rig.eager(scene)))
    for which, output in outputs:
        if (differs := difference(output, expected, 0.0)) is not None:
            yield Fault(what=f"the same batch again, in {which} backend: {differs}")
            return


DETERMINISM = Check(
    about=CATALOG["determinism"],
    excuse=unless_claimed("deterministic"),
    cases=_cases_determinism,
    run=_run_determinism,
)


def _run_invariance(rig: Rig, case: Case) -> Iterator[Fault]:
    scenario = case.batch_scenario
    dice = scenarios.dice_for(scenario, case.seed)
    most = scenario.max_requests
    scene = scenarios.draw_requests(scenario, dice, most, setting_seed=case.seed)
    expected = torch.split(rig.baseline(scene), scene.counts)
    for requests in _selections(dice, most):
        batch = scene.select(requests)
        outputs = torch.split(rig.plain(batch), batch.counts)
        for request, output in zip(requests, outputs, strict=True):
            if (differs := difference(output, expected[request], 0.0)) is not None:
                others = ", ".join(str(other) for other in requests if other != request)
                beside = f"beside {others}" if others else "alone"
                bits = f"request {request} of {most} has other bits {beside}"
                yield Fault(what=f"{bits}: of its own {differs}")
                return


def _selections(dice: random.Random, most: int) -> Iterator[Sequence[int]]:
    """Draw requests and their order: one alone, all reversed, two, and three."""
    places = range(most)
    yield [dice.choice(places)]
    yield places[::-1]
    for count in (2, 3):
        yield dice.sample(places, count)


BATCH_INVARIANCE = Check(
    about=CATALOG["batch-invariance"],
    excuse=unless_claimed("batch_invariant"),
    cases=partial(cases_by_seed, "batch-invariance", _bit_scenarios),
    run=_run_invariance,
)
