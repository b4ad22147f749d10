"""Few combinations that hold every pair of values: a cover of a grid too large to run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heapreplace
from itertools import combinations, product

Row = dict[str, object]
"""A value by each axis's name."""
_Places = tuple[int, ...]
"""A row, as the place of each value in its axis."""
_Pair = tuple[tuple[int, int], ...]
"""Two axes, each with a value's place; one where there is one axis."""


def pairwise_cover(
    axes: Mapping[str, Sequence[object]], is_legal: Callable[[Row], bool] | None = None
) -> list[Row]:
    """Choose rows that hold every pair of values that some legal row holds.

    Each row is the one that holds the most pairs not held yet, the first of them in the grid's
    order, so the same axes give the same rows.

    Args:
        axes: the values of each axis, by name.
        is_legal: whether a full row may run; by default every one may.
    """
    grid = [
        places
        for places in product(*(range(len(values)) for values in axes.values()))
        if is_legal is None or is_legal(_row(axes, places))
    ]
    return [_row(axes, places) for places in _chosen(grid)]


def _chosen(grid: Sequence[_Places]) -> Iterator[_Places]:
    pairs = [_pairs(places) for places in grid]
    left = frozenset[_Pair]().union(*pairs)
    queue = [(-len(own), number) for number, own in enumerate(pairs)]
    heapify(queue)
    while left:
        gain, number = queue[0]
        # What a row adds only shrinks, so the first that is up to date adds the most.
        now = len(pairs[number] & left)
        if now != -gain:
            heapreplace(queue, (-now, number))
            continue
        heappop(queue)
        left -= pairs[number]
        yield grid[number]


def _pairs(places: _Places) -> frozenset[_Pair]:
    return frozenset(combinations(enumerate(places), min(2, len(places))))


def _row(axes: Mapping[str, Sequence[object]], places: _Places) -> Row:
    return {name: values[place] for (name, values), place in zip(axes.items(), places, strict=True)}
