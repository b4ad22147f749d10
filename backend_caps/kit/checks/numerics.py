"""Outputs are those of attention as it is defined, in float64."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain

from backend_caps.capability.kind import Phase, Role
from backend_caps.kit.check import Case, Check, Effort, Fault, always, cases_of
from backend_caps.kit.probes.exact import fault_beside_float64
from backend_caps.kit.rig import Rig
from backend_caps.kit.scenarios import (
    CAUSAL,
    Scenario,
    dtypes_of,
    head_sizes_of,
    page_sizes_of,
    scenarios_of,
)
from backend_caps.kit.scenes import dice_of
from backend_caps.kit.subject import Subject

_CODE = "numerics"
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


def _scenarios(subject: Subject, seed: int) -> Iterator[Scenario]:
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


def _cases(subject: Subject, effort: Effort) -> Iterable[Case]:
    return chain.from_iterable(
        cases_of(_CODE, dict.fromkeys(_scenarios(subject, seed)), replace(effort, seeds=(seed,)))
        for seed in effort.seeds
    )


def _run(rig: Rig, case: Case) -> Iterator[Fault]:
    yield from fault_beside_float64(rig, case)


CHECK = Check(
    code=_CODE,
    claims=("dtypes", "kv_cache_dtypes", "page_sizes", "head_sizes"),
    title="Outputs are attention's, within the tolerance.",
    proves="Eager prompts, chunks of prompts, mixed batches, decodes and verified chains are "
    "within the tolerance of float64, over each dtype, page size and head size that is claimed and "
    "known here, some of them together, several groupings of heads, contexts that share their "
    "first pages, and contexts of some hundreds of tokens. The KV cache has the query's dtype.",
    cannot="Sizes that no case has, contexts of thousands of tokens, and what only a real device "
    "rounds differently.",
    excuse=always,
    cases=_cases,
    run=_run,
)
