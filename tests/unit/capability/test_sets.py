from __future__ import annotations

import pytest

from backend_caps import ANY, ComputeRange, Conflict, Exact, MultipleOf, OneOf
from backend_caps.capability.sets import JoinedSizes, Sizes, Unchecked, Windows, intersect, overlap


def _one_of(*sizes: int) -> OneOf:
    return OneOf(frozenset(sizes))


_EVEN, _TRIPLE, _SIXES = MultipleOf(2), MultipleOf(3), MultipleOf(6)
_SHARED = [
    pytest.param(Exact(16), Exact(16), Exact(16), id="the same size"),
    pytest.param(Exact(16), Exact(32), Conflict(), id="two sizes"),
    pytest.param(Exact(32), MultipleOf(16), Exact(32), id="a size among multiples"),
    pytest.param(Exact(24), MultipleOf(16), Conflict(), id="a size beside multiples"),
    pytest.param(Exact(16), _one_of(16, 64), Exact(16), id="a size among a few"),
    pytest.param(Exact(32), _one_of(16, 64), Conflict(), id="a size beside a few"),
    pytest.param(_EVEN, _TRIPLE, _SIXES, id="multiples of both"),
    pytest.param(MultipleOf(4), MultipleOf(6), MultipleOf(12), id="multiples with a divisor"),
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
    pytest.param(Unchecked(_EVEN), Unchecked(_TRIPLE), Unchecked(_SIXES), id="unchecked twice"),
    pytest.param(Unchecked(Exact(16)), Exact(32), Conflict(), id="unchecked and beside it"),
    pytest.param(Conflict(("fa3",)), ANY, Conflict(), id="a conflict stays one"),
    pytest.param(Conflict(), Unchecked(), Conflict(), id="a conflict, unchecked"),
]


@pytest.mark.parametrize(("one", "other", "shared"), _SHARED)
def test_intersect_is_what_both_take(
    one: JoinedSizes, other: JoinedSizes, shared: JoinedSizes
) -> None:
    """Two sets of sizes join to what both take, whichever comes first."""
    assert (intersect(one, other), intersect(other, one)) == (shared, shared)


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

    assert [size for size in candidates if size in sizes] == taken


def test_multiples_hold_whole_numbers_alone() -> None:
    """What is no whole number is no multiple."""
    assert not any(value in MultipleOf(16) for value in ("32", 32.0, None))


@pytest.mark.parametrize(
    ("sizes", "text"),
    [
        pytest.param(Exact(64), "64", id="one size"),
        pytest.param(MultipleOf(16), "multiples of 16", id="multiples"),
        pytest.param(_one_of(128, 64, 8), "one of 8, 64, 128", id="a few, by number"),
        pytest.param(ANY, "any", id="any"),
        pytest.param(Unchecked(), "not checked (within any)", id="unchecked"),
        pytest.param(Unchecked(Exact(8)), "not checked (within 8)", id="partly checked"),
        pytest.param(Conflict(), "conflict", id="a conflict"),
        pytest.param(Conflict(("fa3", "mla")), "conflict: fa3 against mla", id="with its owners"),
    ],
)
def test_sizes_are_written_as_people_read_them(sizes: JoinedSizes, text: str) -> None:
    """Each kind of set has its own words."""
    assert str(sizes) == text


@pytest.mark.parametrize(
    ("window", "inside"),
    [
        pytest.param(ComputeRange((9, 0)), [(9, 0), (9, 10), (10, 0)], id="open to the top"),
        pytest.param(ComputeRange((8, 9), (10, 0)), [(8, 9), (9, 0), (9, 10)], id="up to its end"),
        pytest.param(ComputeRange((9, 0), (9, 0)), [], id="empty"),
    ],
)
def test_window_holds_versions_by_number(
    window: ComputeRange, inside: list[tuple[int, int]]
) -> None:
    """A window holds what is from its start on and below its end, 9.10 above 9.9."""
    versions = [(8, 0), (8, 9), (9, 0), (9, 10), (10, 0)]

    assert [version for version in versions if version in window] == inside


_A, _TURING = ComputeRange((8, 0), (9, 0)), ComputeRange((7, 5), (8, 9))
_A_TO_8_9 = ComputeRange((8, 0), (8, 9))
_FROM_8, _FROM_10 = ComputeRange((8, 0)), ComputeRange((10, 0))


@pytest.mark.parametrize(
    ("one", "other", "shared"),
    [
        pytest.param((_A,), (_FROM_8,), (_A,), id="one in the other"),
        pytest.param((_TURING,), (_A,), (_A_TO_8_9,), id="one reaches into the other"),
        pytest.param((_A,), (_FROM_10,), (), id="nothing"),
        pytest.param((_A,), (ComputeRange((9, 0)),), (), id="one ends where the other starts"),
        pytest.param((_FROM_10, _A), (_FROM_8,), (_A, _FROM_10), id="two windows, in order"),
        pytest.param((_A_TO_8_9, _A), (_FROM_8,), (_A,), id="windows that overlap are one"),
        pytest.param((_FROM_8, _A), (_FROM_8,), (_FROM_8,), id="a window in another is not kept"),
        pytest.param((_A, ComputeRange((9, 0))), ANY, (_FROM_8,), id="windows that touch are one"),
        pytest.param((ComputeRange((9, 0), (9, 0)),), ANY, (), id="an empty window is none"),
        pytest.param(ANY, ANY, ANY, id="any"),
        pytest.param((), (_A,), (), id="none at all"),
    ],
)
def test_windows_join_to_what_they_share(one: Windows, other: Windows, shared: Windows) -> None:
    """Two lists of windows join to what both hold, whichever comes first."""
    assert (overlap(one, other), overlap(other, one)) == (shared, shared)
