from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations, product

from hypothesis import given
from hypothesis import strategies as st

from tests.property.strategies import law
from tests.runtime.speculative.pairwise import Row, pairwise_cover

_Axes = Mapping[str, Sequence[object]]

_GRID: _Axes = {
    "algorithm": ["EAGLE", "STANDALONE", "NGRAM"],
    "topk": [1, 2, 4],
    "num_steps": [1, 2, 3, 4, 5],
    "mirror": ["none", "upper bound", "exact"],
    "overlapped": [True, False],
    "page_size": [1, 4],
}


def _ngram_is_exact(row: Row) -> bool:
    return row["algorithm"] != "NGRAM" or row["mirror"] == "exact"


def _rows(axes: _Axes) -> list[Row]:
    return [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]


def _held(rows: Sequence[Row]) -> set[tuple[tuple[str, object], ...]]:
    return {pair for row in rows for pair in combinations(row.items(), 2)}


_ANY_AXES = st.lists(st.integers(1, 4), min_size=2, max_size=4).map(
    lambda sizes: {f"axis {number}": range(size) for number, size in enumerate(sizes)}
)


@given(axes=_ANY_AXES, banned=st.sets(st.integers(0, 12)))
@law
def test_cover_holds_every_pair_of_a_legal_row(axes: _Axes, banned: set[int]) -> None:
    """A pair that some legal row holds is held by a row of the cover."""

    def is_legal(row: Row) -> bool:
        return sum(value for value in row.values() if isinstance(value, int)) not in banned

    cover = pairwise_cover(axes, is_legal)

    assert _held(cover) == _held([row for row in _rows(axes) if is_legal(row)])


def test_cover_holds_legal_rows_alone() -> None:
    """Every row of a cover is one of the grid's that the predicate lets through."""
    cover = pairwise_cover(_GRID, _ngram_is_exact)

    legal = [row for row in _rows(_GRID) if _ngram_is_exact(row)]
    assert [row for row in cover if row not in legal] == []
