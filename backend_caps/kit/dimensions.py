"""The dimensions of a scenario, whose values rotate over the cases of each check.

A case for each combination of values would take hours. So each case has one value of every
dimension: the next case of its check has the next value, and the next seed begins with another one.
Steps differ from dimension to dimension, so that values meet in other combinations.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import gcd

from backend_caps.kit.scenarios import Forward, Scenario
from backend_caps.kit.scenes import Layout, Numbers
from backend_caps.kit.subject import Subject

_MOST_CELLS = 2**21
"""Numbers in the keys of a case; a larger one keeps usual values."""
_FIXED_SIZE = 3
"""Width of trees up to which the number of nodes is free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dimension:
    """One dimension of scenarios."""

    name: str
    """Its name in tables."""
    values: Callable[[Scenario], Sequence[Mapping[str, object]]]
    """Lists the values that rotate, as fields of a scenario; the usual ones of a forward first."""
    shown: Callable[[Scenario], str | None]
    """Returns the value of a scenario in a table; None where its forward has none."""
    step: int = 1
    """Places from the value of a case to that of the next one of its check."""
    by_seed: int = 1
    """Places from the value of a case to that of the next seed."""


def _fields(name: str, *values: object) -> Sequence[Mapping[str, object]]:
    return [{name: value} for value in values]


_HEADS = (
    (4, 2),
    (8, 8),
    (4, 4),
    (32, 8),
    (8, 1),
    (6, 2),
    (16, 8),
    (1, 1),
    (64, 8),
    (28, 4),
    (16, 16),
)
"""Query heads and KV heads; groups of 1, 2, 3, 4, 7 and 8."""
_REQUESTS = {Forward.DECODE: (4, 8, 17, 5)}
"""Requests of the largest batch of a forward; of others 4, 8 or 5."""
_LAYERS = ((0,), (0, 1), (2,), (1, 3), (0, 1, 2))
"""Layers that run, of a KV cache with all up to the last of them."""
_NUMBERS = (Numbers.USUAL, Numbers.HIGH, Numbers.USUAL, Numbers.LARGE, Numbers.LOW)
_NEW: Mapping[Forward, Sequence[int | None]] = {
    Forward.CHUNK: (None, 17, 33, 65),
    Forward.MIXED: (None, 17, 33),
    Forward.VERIFY: (None, 8, 2, 5, 4, 7, 6),
    Forward.DRAFT_EXTEND: (None, 5, 2, 8, 4),
    Forward.TREE: (None, 8, 3, 6, 4, 7),
}
"""New tokens of a request; None: the usual number."""


def _new_tokens(scenario: Scenario) -> Sequence[Mapping[str, object]]:
    is_fixed = scenario.forward is Forward.TREE and scenario.topk > _FIXED_SIZE
    return _fields("new_tokens", *(_NEW.get(scenario.forward, ()) if not is_fixed else ()))


def _of_forward(scenario: Scenario, *forwards: Forward) -> str | None:
    return f"{scenario.count}" if scenario.forward in forwards else None


DIMENSIONS: tuple[Dimension, ...] = (
    Dimension(
        name="layers that run",
        values=lambda _: _fields("layer_ids", *_LAYERS),
        shown=lambda own: "+".join(map(str, own.layer_ids)),
        by_seed=2,
    ),
    Dimension(
        name="query heads : KV heads",
        values=lambda _: [{"num_heads": q, "num_kv_heads": kv} for q, kv in _HEADS],
        shown=lambda own: f"{own.num_heads}:{own.num_kv_heads}",
        step=3,
        by_seed=5,
    ),
    Dimension(
        name="requests of the largest batch",
        values=lambda own: _fields("max_requests", *_REQUESTS.get(own.forward, (4, 8, 5))),
        shown=lambda own: f"{own.max_requests}",
    ),
    Dimension(
        name="numbers",
        values=lambda _: _fields("numbers", *_NUMBERS),
        shown=lambda own: own.numbers.value,
        step=2,
    ),
    Dimension(
        name="layout of q, k and v",
        values=lambda _: _fields("layout", *Layout),
        shown=lambda own: own.layout.value,
    ),
    Dimension(
        name="page table",
        values=lambda _: _fields("index_dtype", "int32", "int32", "int64", "int64"),
        shown=lambda own: own.index_dtype,
    ),
    Dimension(
        name="new tokens of the longest chunk",
        values=_new_tokens,
        shown=lambda own: _of_forward(own, Forward.CHUNK, Forward.MIXED),
    ),
    Dimension(
        name="tokens of a verified chain",
        values=lambda _: (),
        shown=lambda own: _of_forward(own, Forward.VERIFY),
    ),
    Dimension(
        name="tokens of a tree",
        values=lambda _: (),
        shown=lambda own: _of_forward(own, Forward.TREE),
    ),
    Dimension(
        name="tokens of a draft-extend",
        values=lambda _: (),
        shown=lambda own: _of_forward(own, Forward.DRAFT_EXTEND),
    ),
    Dimension(
        name="children of a node, and beams",
        values=lambda _: (),
        shown=lambda own: f"{own.topk}" if own.forward.is_tree else None,
    ),
    Dimension(name="dtype", values=lambda _: (), shown=lambda own: own.dtype),
    Dimension(name="page size", values=lambda _: (), shown=lambda own: f"{own.page_size}"),
    Dimension(
        name="sizes of keys and values",
        values=lambda _: (),
        shown=lambda own: f"{own.head_size}:{own.value_size}",
    ),
    Dimension(
        name="first tokens",
        values=lambda _: (),
        shown=lambda own: "shared" if own.is_shared else "apart",
    ),
    Dimension(
        name="longest context", values=lambda _: (), shown=lambda own: f"{own.max_context_len}"
    ),
)
"""Every dimension, in the order of tables; those without values of their own are a check's."""


def rotated(scenarios: Iterable[Scenario], seed: int, subject: Subject) -> Iterator[Scenario]:
    """Give each scenario of a check and seed one value of every dimension.

    A scenario that states a value of a dimension keeps it.
    """
    for number, scenario in enumerate(scenarios):
        yield _rotated(scenario, number, seed, subject)


def _rotated(usual: Scenario, number: int, seed: int, subject: Subject) -> Scenario:
    scenario = usual
    for dimension in DIMENSIONS:
        values = dimension.values(usual)
        if values and not _states(usual, values[0]):
            place = number * _coprime(dimension.step, len(values)) + seed * dimension.by_seed
            changed = replace(scenario, **values[place % len(values)])  # type: ignore[arg-type]
            if _num_cells(changed) <= _MOST_CELLS and _is_taken(changed, subject):
                scenario = changed
    return scenario


def _states(scenario: Scenario, usual: Mapping[str, object]) -> bool:
    return any(getattr(scenario, name) != value for name, value in usual.items())


def _coprime(step: int, count: int) -> int:
    """Return the first step from `step` on that reaches every one of `count` values."""
    while gcd(step, count) > 1:
        step += 1
    return step


def _num_cells(scenario: Scenario) -> int:
    pages_each = -(-scenario.max_context_len // scenario.page_size)
    num_slots = scenario.max_requests * pages_each * scenario.page_size
    num_layers = scenario.layer_ids[-1] + 1
    return num_layers * num_slots * scenario.num_kv_heads * scenario.head_size


def _is_taken(scenario: Scenario, subject: Subject) -> bool:
    """Return whether a backend has to take a scenario: an engine's gets the engine's dtypes."""
    is_known = subject.builder is None or scenario.index_dtype == "int32"
    return is_known and subject.takes(scenario)


def values_of(scenarios: Iterable[Scenario]) -> Mapping[str, Mapping[str, int]]:
    """Count the scenarios with each value of each dimension, by its name; values are sorted."""
    counts: dict[str, Counter[str]] = {dimension.name: Counter() for dimension in DIMENSIONS}
    for scenario in scenarios:
        for dimension in DIMENSIONS:
            if (value := dimension.shown(scenario)) is not None:
                counts[dimension.name][value] += 1
    return {
        name: {value: counted[value] for value in sorted(counted, key=_numbers_in)}
        for name, counted in counts.items()
        if counted
    }


def _numbers_in(value: str) -> tuple[list[int], str]:
    return [int(number) for number in re.findall(r"\d+", value)], value
