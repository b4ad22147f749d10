"""What a token sees, as `flex_attention` asks: for one row, one token and one place at a time.

Shapes: R rows of N tokens, K places that each row's tokens look at, M entries in a tree mask.
Kernels ask with scalars, the eager path with whole ranges that broadcast.

What masks are made of is padded to sizes that do not follow the batch: `MOST_ROWS`, `MOST_TOKENS`
and powers of two. A kernel for CPUs that finds any other size in a mask is no C++: torch 2.13 puts
its own variables in by their text, `ks1` and `ks2`, and finds them in the names of sizes too, in
`ks18` and `ks23` (`modification` in torch/_inductor/codegen/cpp_flex_attention_template.py).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

MOST_ROWS = 256
"""R is at most this."""
MOST_TOKENS = 2**16
"""N is at most this."""
_FEWEST_ENTRIES = 2**16


@dataclass(frozen=True, slots=True)
class Spans:
    """Each token sees what stands from its begin to its end."""

    begins: Tensor
    """[at least R, at least N] int64, device."""
    ends: Tensor
    """[at least R, at least N] int64, device: exclusive; not behind the begin for a token that sees
    nothing."""
    shape: tuple[int, int]
    """R and N."""

    @property
    def parts(self) -> tuple[Tensor, ...]:
        """What it is made of, in the order of its fields."""
        return self.begins, self.ends

    def visible(self, row: Tensor, token: Tensor, place: Tensor) -> Tensor:
        """Tell whether tokens see places. Sync: none."""
        return (place >= self.begins[row, token]) & (place < self.ends[row, token])


@dataclass(frozen=True, slots=True)
class Branches:
    """Each token of a tree sees what its row of the tree mask says."""

    lengths: Tensor
    """[at least R] int64, device: each context's, at which its places end."""
    starts: Tensor
    """[at least R, N] int64, device: where each token's row of the mask begins."""
    entries: Tensor
    """[more than M] bool, device: the mask; the last entry is for whoever looks behind it."""
    shape: tuple[int, int]
    """R and N."""

    @property
    def parts(self) -> tuple[Tensor, ...]:
        """What it is made of, in the order of its fields."""
        return self.lengths, self.starts, self.entries

    def visible(self, row: Tensor, token: Tensor, place: Tensor) -> Tensor:
        """Tell whether tokens see places. Sync: none."""
        entry = (self.starts[row, token] + place).clamp(max=self.entries.shape[0] - 1)
        return (place < self.lengths[row]) & self.entries[entry]


def spans_of_rows(begins: Tensor, ends: Tensor) -> Spans:
    """Make the mask of R requests, each with a row of N tokens.

    begins, ends  [R, N] int64, device

    Sync: none. Allocates: the mask. Keeps: nothing; both are copied.
    """
    return Spans(_padded(begins), _padded(ends), (begins.shape[0], begins.shape[1]))


def spans_of_tokens(begins: Tensor, ends: Tensor, order: Tensor, num_tokens: int) -> Spans:
    """Make the mask of one row, in which tokens of any requests stand apart.

    begins, ends  [at most N] int64, device
    order         the same shape, int64, device  where in the row each of them stands
    num_tokens    N; a token of the row that is none of those sees nothing

    Sync: none. Allocates: the mask. Keeps: nothing; both are copied.
    """
    rows = begins.new_zeros(2, MOST_TOKENS)
    begins, ends = rows.scatter_(1, order.expand(2, -1), torch.stack((begins, ends)))[:, None]
    return Spans(begins, ends, (1, num_tokens))


def entries_of(tree_mask: Tensor) -> Tensor:
    """Copy a tree mask [M] into the next power of two, with false entries behind it.

    Sync: none. Allocates: the result. Keeps: nothing.
    """
    size = max(_FEWEST_ENTRIES, 1 << len(tree_mask).bit_length())
    return pad(tree_mask, (0, size - len(tree_mask)))


def branches_of(lengths: Tensor, starts: Tensor, entries: Tensor) -> Branches:
    """Make the mask of R trees, each with a row of N tokens.

    lengths  [R] int64, device
    starts   [R, N] int64, device
    entries  as `entries_of` makes them

    Sync: none. Allocates: the mask, but for its entries. Keeps: entries.
    """
    num_rows, num_tokens = starts.shape
    longer = pad(lengths, (0, MOST_ROWS - num_rows))
    return Branches(longer, _padded(starts), entries, (num_rows, num_tokens))


def visible_of(mask: Spans | Branches, num_places: int, device: torch.device) -> Tensor:
    """Ask a mask for all at once.

    returns  [R, N, K] bool, device  K being `num_places`

    Stream: the current one.
    Sync: none. Allocates: the result, and for trees 8 times as much while it runs. Capture: yes.
    """
    rows, tokens, places = (torch.arange(size, device=device) for size in (*mask.shape, num_places))
    return mask.visible(rows[:, None, None], tokens[:, None], places)


def _padded(of_rows: Tensor) -> Tensor:
    return pad(of_rows, (0, 0, 0, MOST_ROWS - len(of_rows)))
