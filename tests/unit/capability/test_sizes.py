from __future__ import annotations

import pytest

from backend_caps.capability.scale import ANY
from backend_caps.capability.sizes import (
    Conflict,
    Exact,
    JoinedSizes,
    MultipleOf,
    OneOf,
    Sizes,
    Unchecked,
    admits,
    intersect,
    text_of_sizes,
)


def _one_of(*sizes: int) -> OneOf:
    return OneOf(frozenset(sizes))


_SHARED = [
    pytest.param(Exact(16), Exact(16), Exact(16), id="the same size"),
    pytest.param(Exact(16), Exact(32), Conflict(), id="two sizes"),
    pytest.param(Exact(32), MultipleOf(16), Exact(32), id="a size among multiples"),
    pytest.param(Exact(24), MultipleOf(16), Conflict(), id="a size beside multiples"),
    pytest.param(Exact(16), _one_of(16, 64), Exact(16), id="a size among a few"),
    pytest.param(Exact(32), _one_of(16, 64), Conflict(), id="a size beside a few"),
    pytest.param(MultipleOf(4), MultipleOf(6), MultipleOf(12), id="multiples of both"),
    pytest.param(MultipleOf(16), _one_of(16, 24, 64), _one_of(16, 64), id="multiples among a few"),
    pytest.param(MultipleOf(16), _one_of(8, 64), Exact(64), id="one multiple among a few"),
    pytest.param(MultipleOf(16), _one_of(8, 24), Conflict(), id="no multiple among a few"),
    pytest.param(_one_of(1, 16, 64), _one_of(16, 64, 128), _one_of(16, 64), id="a few in both"),
    pytest.param(_one_of(1, 16), _one_of(64, 128), Conflict(), id="a few, none in both"),
    pytest.param(ANY, Exact(16), Exact(16), id="any and a size"),
    pytest.param(ANY, MultipleOf(16), MultipleOf(16), id="any and multiples"),
    pytest.param(ANY, _one_of(16, 64), _one_of(16, 64), id="any and a few"),
    pytest.param(ANY, _one_of(16), Exact(16), id="any and a few that are one"),
    pytest.param(ANY, ANY, ANY, id="any twice"),
    pytest.param(Unchecked(), Exact(16), Unchecked(Exact(16)), id="unchecked and a size"),
    pytest.param(
        Unchecked(MultipleOf(4)),
        Unchecked(MultipleOf(6)),
        Unchecked(MultipleOf(12)),
        id="unchecked twice",
    ),
    pytest.param(Unchecked(Exact(16)), Exact(32), Conflict(), id="unchecked and beside it"),
    pytest.param(Conflict(("fa3",)), ANY, Conflict(), id="a conflict stays one"),
    pytest.param(Conflict(), Unchecked(), Conflict(), id="a conflict, unchecked"),
]


@pytest.mark.parametrize(("one", "other", "shared"), _SHARED)
def test_intersect_is_what_both_take(
    one: JoinedSizes, other: JoinedSizes, shared: JoinedSizes
) -> None:
    """Two sets of sizes join to what both take, whichever comes first."""
    joined = (intersect(one, other), intersect(other, one))

    assert joined == (shared, shared)


@pytest.mark.parametrize(
    ("sizes", "taken"),
    [
        pytest.param(Exact(16), [16], id="one size"),
        pytest.param(MultipleOf(16), [16, 32, 64], id="multiples"),
        pytest.param(_one_of(1, 64), [1, 64], id="a few"),
        pytest.param(ANY, [1, 16, 24, 32, 64], id="any"),
    ],
)
def test_admits_tells_which_sizes_are_taken(sizes: Sizes, taken: list[int]) -> None:
    """A set takes its own sizes and no other."""
    candidates = [1, 16, 24, 32, 64]

    admitted = [size for size in candidates if admits(sizes, size)]

    assert admitted == taken


@pytest.mark.parametrize("value", ["32", 32.0, None])
def test_multiples_hold_whole_numbers_alone(value: object) -> None:
    """What is no whole number is no multiple."""
    multiples = MultipleOf(16)

    assert value not in multiples


@pytest.mark.parametrize(
    ("sizes", "text"),
    [
        pytest.param(Exact(64), "64", id="one size"),
        pytest.param(MultipleOf(16), "multiples of 16", id="multiples"),
        pytest.param(_one_of(128, 64, 8), "one of 8, 64, 128", id="a few, by number"),
        pytest.param(ANY, "any", id="any"),
        pytest.param(Unchecked(), "not checked (within any)", id="unchecked"),
        pytest.param(
            Unchecked(MultipleOf(8)), "not checked (within multiples of 8)", id="partly checked"
        ),
        pytest.param(Conflict(), "conflict", id="a conflict"),
        pytest.param(Conflict(("fa3", "mla")), "conflict: fa3 against mla", id="with its owners"),
    ],
)
def test_sizes_are_written_as_people_read_them(sizes: JoinedSizes, text: str) -> None:
    """Each kind of set has its own words."""
    written = text_of_sizes(sizes)

    assert written == text


def test_few_sizes_are_stored_frozen() -> None:
    """A set that the author may change later is stored as one that nobody can."""
    mutable = {64, 16}

    sizes = OneOf(mutable)

    mutable.clear()
    assert sizes == _one_of(16, 64)
