from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations, product

from hypothesis import given
from hypothesis import strategies as st

from tests.property.strategies import law
from tests.runtime.speculative.pairwise import Row, pairwise_cover

_Axes = Mapping[str, Sequence[object]]


def _rows(axes: _Axes) -> list[Row]:
    return [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]


def _held(rows: Sequence[Row]) -> set[tuple[tuple[str, object], ...]]:
    return {pair for row in rows for pair in combinations(row.items(), 2)}


_ANY_AXES = st.lists(st.integers(1, 4), min_size=2, max_size=4).map(
    lambda sizes: {f"axis {number}": range(size) for number, size in enumerate(sizes)}
)


@given(axes=_ANY_AXES, banned=st.sets(st.integers(0, 12)))
@law
def test_cover_holds_every_legal_pair_and_no_other_row(axes: _Axes, banned: set[int]) -> None:
    """A pair that some legal row holds is held by a row of the cover, and that row is legal."""

    def is_legal(row: Row) -> bool:
        return sum(value for value in row.values() if isinstance(value, int)) not in banned

    cover = pairwise_cover(axes, is_legal)

    legal = [row for row in _rows(axes) if is_legal(row)]
    assert _held(cover) == _held(legal)
    assert [row for row in cover if row not in legal] == []
