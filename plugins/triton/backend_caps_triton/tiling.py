"""How large everything is that the kernels work on: by shapes alone, so that graphs may keep it.

Shapes: B requests and T tokens in the batch, Hq query heads, Hk key and value heads, D and Dv their
sizes, H blocks of heads, R rows of an item, Q parts.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

_MOST_ROWS = 64
"""Rows of an item, but for those that a narrower one would not fill: what keeps the matrix units
busy and leaves registers for heads of 256."""
_LEAST_SIDE = 16
"""The least side of a matrix that `tl.dot` multiplies."""
_STEP_BYTES = 2**14
"""Keys that are loaded at once, and as many values. Beside the queries two of each fit into the 99
KiB of shared memory that the smallest devices of compute capability 8 have. Where queries are as
wide, only half of it fits, and where they are wider, one of each."""
_MOST_POSITIONS = 64
_WIDE = 64 * 128
"""Entries of an accumulator from which more warps share it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiling:
    """The sizes of one layer's kernels."""

    group: int
    """Heads of an item: query heads that share a key and value head, rounded up, or some."""
    head_blocks: int
    """H: items that it takes to have all heads."""
    rows: int
    """R: queries of an item."""
    step: int
    """Positions of a context that are read at once."""
    features: int
    """D, rounded up."""
    value_features: int
    """Dv, rounded up."""
    num_warps: int
    num_stages: int
    """Steps whose keys and values are in shared memory at once."""

    @classmethod
    def of(cls, q: Tensor, keys: Tensor, values: Tensor, tile: int) -> Tiling:
        """Choose them by shapes and dtypes; no value is read.

        q       [T, Hq, D]
        keys    [S, Hk, D]
        values  [S, Hk, Dv]
        """
        group_size = q.shape[1] // keys.shape[1]
        group = min(power_of_two(group_size), max(1, _MOST_ROWS // tile))
        features, value_features = (
            max(_LEAST_SIDE, power_of_two(own.shape[2])) for own in (keys, values)
        )
        rows = max(_LEAST_SIDE, tile * group)
        widest = max(features, value_features)
        entry_bytes = max(own.element_size() for own in (q, keys, values))
        query_bytes = rows * widest * entry_bytes
        step_bytes = _STEP_BYTES if query_bytes < _STEP_BYTES else _STEP_BYTES // 2
        positions = step_bytes // (widest * entry_bytes)
        return cls(
            group=group,
            head_blocks=keys.shape[1] * ceil_div(group_size, group),
            rows=rows,
            step=min(_MOST_POSITIONS, max(_LEAST_SIDE, positions)),
            features=features,
            value_features=value_features,
            num_warps=8 if rows * widest > _WIDE else 4,
            num_stages=1 if query_bytes > _STEP_BYTES else 2,
        )


def tile_of(num_requests: int, num_tokens: int) -> int:
    """Choose how many tokens of a request an item has, by how many requests bring on average."""
    return min(_MOST_ROWS, power_of_two(ceil_div(num_tokens, max(1, num_requests))))


def num_tiles_of(num_requests: int, num_tokens: int, tile: int, *, is_ragged: bool) -> int:
    """Bound the tiles of a batch: exactly, where all requests bring the same number of tokens."""
    if is_ragged:
        return min(num_tokens, num_tokens // tile + num_requests)
    return num_requests * ceil_div(num_tokens // max(1, num_requests), tile)


def power_of_two(number: int) -> int:
    """Round up to a power of two."""
    return 1 << max(0, number - 1).bit_length()


def ceil_div(number: int, by: int) -> int:
    """Divide, and round up."""
    return -(-number // by)
