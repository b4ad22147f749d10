"""Outputs are those of attention as it is defined, in float64."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from backend_caps.conformance.kit.check import Case, Check, Effort, Fault, always, cases_of
from backend_caps.conformance.kit.rig import Rig, difference
from backend_caps.conformance.kit.scenarios import (
    CAUSAL,
    Scenario,
    draw,
    dtypes_of,
    head_sizes_of,
    page_sizes_of,
    scenarios_of,
)
from backend_caps.conformance.kit.subject import Subject
from backend_caps.conformance.scenes import reference_attention


def _scenarios(subject: Subject) -> Iterator[Scenario]:
    """Vary one thing at a time: forward and page, then dtype, head size, grouping and page."""
    plain = list(scenarios_of(subject, CAUSAL))
    yield from plain
    for base in (plain[0], plain[-1]):
        yield from (replace(base, dtype=dtype) for dtype in dtypes_of(subject)[1:])
        yield from (replace(base, head_size=size) for size in head_sizes_of(subject)[1:])
        yield from (replace(base, page_size=size) for size in page_sizes_of(subject)[2:])
        yield from (
            replace(base, num_heads=heads, num_kv_heads=kv_heads)
            for heads, kv_heads in ((1, 1), (4, 4), (8, 1))
        )


def _cases(subject: Subject, effort: Effort) -> Iterable[Case]:
    return cases_of("numerics", _scenarios(subject), effort)


def _run(rig: Rig, case: Case) -> Iterator[Fault]:
    assert case.scenario is not None, "each case has batches"
    scene = draw(case.scenario, case.seed)
    tolerance = rig.subject.tolerance(case.scenario.dtype)
    differs = difference(rig.plain(scene), reference_attention(scene), tolerance)
    if differs is not None:
        yield Fault(what=f"{differs} of float64")


CHECK = Check(
    code="numerics",
    claims=("dtypes", "page_sizes", "head_sizes"),
    title="Outputs are attention's, within the tolerance.",
    proves="Eager forwards of drawn batches are within the tolerance of float64, over each forward "
    "that is causal, and each dtype, page size and head size that is claimed and known here.",
    cannot="Sizes that no case has, contexts of thousands of tokens, and what only a real device "
    "rounds differently.",
    excuse=always,
    cases=_cases,
    run=_run,
)
