"""Outputs are those of attention as it is defined, in float64."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain

from backend_caps.capability.kind import Phase, Role
from backend_caps.kit.check import Case, Check, Effort, Fault, always, cases_of, scenario_of
from backend_caps.kit.rig import Rig
from backend_caps.kit.scenarios import (
    CAUSAL,
    Forward,
    Scenario,
    draw,
    dtypes_of,
    head_sizes_of,
    page_sizes_of,
    roles_of,
    scenarios_of,
    topk_of,
)
from backend_caps.kit.scenes import Scene, dice_of, reference_attention, sharing
from backend_caps.kit.subject import Subject
from backend_caps.report.check_catalog import CATALOG


def fault_beside_float64(rig: Rig, case: Case) -> Iterator[Fault]:
    """Run a case's scene plainly, and compare it with float64.

    Every other seed has contexts share their first pages, where all are that long.
    """
    scenario = scenario_of(case)
    scene = draw(scenario, case.seed)
    told = ""
    if case.seed % 2:
        scene, told = _shared(scene)
    output = rig.plain(scene)
    if output.dtype != scene.q.dtype:
        yield Fault(what=f"its output is {output.dtype}, of queries of {scene.q.dtype}")
    differs = rig.difference(output, reference_attention(scene), scenario)
    if differs is not None:
        lengths = scene.batch.seq_lens.tolist()
        new = list(scene.counts)
        yield Fault(
            what=f"beside float64 {differs}; contexts of {lengths} tokens, {new} of them new{told}"
        )


def _shared(scene: Scene) -> tuple[Scene, str]:
    """Let contexts begin alike by as many whole pages as all have cached, and say by how much."""
    cached = (scene.batch.seq_lens.cpu() - scene.batch.seq_lens.new_tensor(scene.counts)).min()
    size = scene.pools.page_size
    num_tokens = int(cached) // size * size
    if num_tokens == 0 or len(scene.counts) == 1:
        return scene, ""
    return sharing(scene, num_tokens), f", the first {num_tokens} shared"


_LONG = 400
"""Tokens of a long context: some hundreds, over several blocks of most kernels."""
_HEADS = ((1, 1), (4, 4), (8, 1), (6, 2))
"""Heads of queries, and of keys and values, beside four to two."""
_TARGET = tuple(forward for forward in CAUSAL if forward.role is Role.TARGET)


def _variations(subject: Subject, base: Scenario) -> Iterator[Scenario]:
    """Vary one thing at a time: dtype, head size, grouping, page, and how long contexts are."""
    yield from (replace(base, dtype=dtype) for dtype in dtypes_of(subject)[1:])
    yield from (replace(base, head_size=size) for size in head_sizes_of(subject)[1:])
    yield from (replace(base, num_heads=own, num_kv_heads=of_kv) for own, of_kv in _HEADS)
    yield from (replace(base, page_size=size) for size in page_sizes_of(subject)[2:])
    yield replace(base, min_context_len=_LONG)


def _scenarios_numerics(subject: Subject, seed: int) -> Iterator[Scenario]:
    """Take each forward at two pages, and with all sizes drawn; then each variation, by turns.

    One seed takes the first variation of a prompt and the second of a decode or verify, the next
    seed the other way round: every other seed has each variation of both.
    """
    plain = list(scenarios_of(subject, _TARGET))
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
        dtype=dice.choice(dtypes_of(subject)),
        head_size=dice.choice(head_sizes_of(subject)),
        page_size=dice.choice(page_sizes_of(subject)),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
    )


def _cases_numerics(subject: Subject, effort: Effort) -> Iterable[Case]:
    return chain.from_iterable(
        cases_of(
            "numerics",
            dict.fromkeys(_scenarios_numerics(subject, seed)),
            replace(effort, seeds=(seed,)),
        )
        for seed in effort.seeds
    )


NUMERICS = Check(
    about=CATALOG["numerics"],
    excuse=always,
    cases=_cases_numerics,
    run=fault_beside_float64,
)


_WIDTHS = (2, 3, 8)
"""Trees that servers use; and one as wide as claimed, where that is at most `_WIDEST`."""
_WIDEST = 16


def _excuse_roles(subject: Subject) -> str | None:
    if roles_of(subject) <= {Role.TARGET} and topk_of(subject) == 1:
        return "it claims the target's role alone, and no trees"
    return None


def _scenarios_roles(subject: Subject) -> Iterator[Scenario]:
    """Take the forwards of drafts and of trees, these in each width."""
    limit = topk_of(subject)
    widths = sorted({own for own in (*_WIDTHS, min(limit, _WIDEST)) if 1 < own <= limit})
    for plain in scenarios_of(subject, (Forward.DRAFT, Forward.TREE)):
        yield from (replace(plain, topk=width) for width in widths)
    yield from scenarios_of(subject, (Forward.DRAFT_EXTEND,))
    if Role.DRAFT in roles_of(subject) and limit == 1:
        # A draft step of a chain is a decode.
        yield from scenarios_of(subject, (Forward.DECODE,))


ROLES = Check(
    about=CATALOG["roles"],
    excuse=_excuse_roles,
    cases=lambda own, effort: cases_of("roles", _scenarios_roles(own), effort),
    run=fault_beside_float64,
)
