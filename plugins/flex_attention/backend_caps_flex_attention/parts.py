"""A batch cut into parts, each with the contexts that are gathered together.

Shapes: L the longest context, B requests and T tokens in the batch, W tokens to which contexts are
padded, C contexts in a part. A part's queries stand in R rows of N, each of which looks at K
places, R * K = C * W: where all requests bring the same number of tokens, each row is a request's
and looks at its context (R = C); otherwise the one row has all tokens (R = 1) and looks at all
contexts, laid side by side. A tree mask has M entries. All of these are shapes: on the device no
length is ever read back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from backend_caps.protocols import ForwardBatch
from backend_caps_flex_attention.blocks import BLOCK, BlockTable, block_table
from backend_caps_flex_attention.masks import (
    MOST_ROWS,
    Branches,
    Spans,
    branches_of,
    entries_of,
    spans_of_rows,
    spans_of_tokens,
    visible_of,
)

_TOKENS_AT_ONCE = 2**16
"""Padded context tokens whose keys and values are gathered together: 256 MiB in bfloat16 with 8
heads of 128. It bounds the memory, not the result."""

_QUERIES_AT_ONCE = 2**15
"""Tokens that stand in one row: with a block more for each of 256 contexts it has `MOST_TOKENS`."""


@dataclass(frozen=True, slots=True)
class Part:
    """Some contexts, and what the tokens of a forward see of them."""

    tokens: slice
    """Its place among the batch's T tokens."""
    order: Tensor | None
    """[tokens] int64, device: where each stands among the R * N, of which others are padding; None:
    in this order, and there are no others."""
    slots: Tensor
    """[C, W] device: where its contexts stand in the KV cache."""
    mask: Spans | Branches
    """What each of the R * N tokens sees of its K places."""
    table: BlockTable
    """The blocks in which it sees anything."""
    is_blind: Tensor
    """[tokens] bool, device: the tokens that see nothing of this part."""


def padded_width(longest: int) -> int:
    """Return W for contexts of up to so many tokens.

    It has two blocks at least: one block would be compiled apart from all others.
    """
    return max(2 * BLOCK, _up(longest))


def parts_of(page_table: Tensor, batch: ForwardBatch, width: int) -> Sequence[Part]:
    """Look up contexts in the page table, and say which blocks of them each token visits.

    page_table  [P, L] int32 or int64, device  the slot of each token; row 0 is the padding row
    width       W, at least as long as every context of the batch

    Stream: the current one.
    Sync: none. Allocates: slots, masks and tables; for trees also T * W flags while it runs.
    Keeps: those, and the batch's tree mask in a copy.
    Capture: yes; a replay reads the batch's tensors and the page table anew.
    Exact: a token that no request owns sees nothing.
    """
    extends = batch.extend_seq_lens
    assert extends is None or batch.tree_mask is None, "trees have the same number of tokens"
    if not len(batch.req_pool_indices) or not len(batch.out_cache_loc):
        return ()
    places = torch.arange(width, device=page_table.device)
    # A width that was rounded up may be more than the page table has; nobody sees what is behind.
    columns = places.clamp(max=page_table.shape[1] - 1)
    lengths = torch.where(batch.req_pool_indices == 0, 0, batch.seq_lens).clamp(max=width)
    some = _Contexts(page_table, batch.req_pool_indices, lengths, places, columns)
    if extends is not None:
        return _shared(some, extends, len(batch.out_cache_loc))
    if batch.tree_mask is None:
        return _causal(some, len(batch.out_cache_loc) // len(lengths))
    return _trees(some, batch.seq_lens, batch.tree_mask, len(batch.out_cache_loc) // len(lengths))


@dataclass(frozen=True, slots=True)
class _Contexts:
    page_table: Tensor
    """[P, L] device."""
    rows: Tensor
    """[B] device."""
    lengths: Tensor
    """[B] int64, device: 0 for a padded request."""
    places: Tensor
    """[W] int64, device."""
    columns: Tensor
    """[W] int64, device: those places, or the last of the page table."""

    def cuts(self) -> Iterable[slice]:
        """Cut the requests into parts of so many as are gathered together."""
        step = min(MOST_ROWS, max(1, _TOKENS_AT_ONCE // len(self.places)))
        count = len(self.rows)
        return [slice(first, min(first + step, count)) for first in range(0, count, step)]

    def slots(self, some: slice, is_seen: Tensor) -> Tensor:
        """Look up some contexts [C, W], of which is_seen [C, W] is read."""
        slots = self.page_table[self.rows[some, None], self.columns]
        # A mask alone would leak: 0 * NaN is NaN. What nobody sees reads a slot of the same context
        # that is seen, so stale slots, stale page tables and other requests are never touched.
        # Where nothing is seen nothing is attended to, and any slot will do.
        spare = torch.where(is_seen, slots, 0).amax(1, keepdim=True)
        return torch.where(is_seen, slots, spare)

    def is_within(self, some: slice) -> Tensor:
        """Mask the places of some contexts [C, W] by their lengths."""
        return self.places < self.lengths[some, None]


def _causal(contexts: _Contexts, count: int) -> Sequence[Part]:
    """Give each request a row of its own, whose tokens are the last of its context."""
    later = torch.arange(count - 1, -1, -1, device=contexts.places.device)
    ends = (contexts.lengths[:, None] - later).clamp(min=0)
    begins = torch.zeros_like(ends)
    return [
        Part(
            tokens=slice(some.start * count, some.stop * count),
            order=None,
            slots=contexts.slots(some, contexts.is_within(some)),
            mask=spans_of_rows(begins[some], ends[some]),
            table=block_table(begins[some], ends[some], len(contexts.places)),
            is_blind=(ends[some] == 0).flatten(),
        )
        for some in contexts.cuts()
    ]


@dataclass(frozen=True, slots=True)
class _Tokens:
    """Some of a batch's tokens, in their order."""

    place: slice
    """Which of the T tokens they are."""
    numbers: Tensor
    """[tokens] int64, device: the same."""
    owners: Tensor
    """[tokens] int64, device: whose they are, by the place in the batch; nobody's from B on."""
    ends: Tensor
    """[tokens] int64, device: how much of its context each sees."""


def _shared(contexts: _Contexts, extend_seq_lens: Tensor, num_tokens: int) -> Sequence[Part]:
    """Lay contexts side by side, and all tokens in one row before them.

    Tokens past the last request's see nothing.
    """
    stops = extend_seq_lens.cumsum(0)
    tokens = torch.arange(num_tokens, device=stops.device)
    owners = torch.searchsorted(stops, tokens, right=True)
    owned = owners.clamp(max=len(stops) - 1)
    ends = (contexts.lengths[owned] - (stops[owned] - tokens - 1)).clamp(min=0)
    cuts = [
        slice(first, min(first + _QUERIES_AT_ONCE, num_tokens))
        for first in range(0, num_tokens, _QUERIES_AT_ONCE)
    ]
    return [
        _shared_part(
            contexts,
            some,
            stops - extend_seq_lens,
            stops,
            _Tokens(cut, tokens[cut], owners[cut], ends[cut]),
        )
        for some in contexts.cuts()
        for cut in cuts
    ]


def _shared_part(
    contexts: _Contexts, some: slice, starts: Tensor, stops: Tensor, tokens: _Tokens
) -> Part:
    """Let some of the tokens see some of the contexts.

    Tokens of two requests never stand in one block: it would visit the contexts of both, and
    0 * NaN of one is NaN in the other.
    """
    width, num_contexts = len(contexts.places), some.stop - some.start
    is_here = (tokens.owners >= some.start) & (tokens.owners < some.stop)
    context = torch.where(is_here, tokens.owners - some.start, 0)
    num_padded = _up(len(tokens.ends)) + BLOCK * num_contexts
    order = tokens.numbers + _shifts(starts[some], stops[some], tokens.place)[context]
    # There is always a place left at the end, for tokens that are not here.
    order = torch.where(is_here, order, num_padded - 1)
    begins = context * width
    ends = torch.where(is_here, begins + tokens.ends, 0)
    mask = spans_of_tokens(begins, ends, order, num_padded)
    return Part(
        tokens=tokens.place,
        order=order,
        slots=contexts.slots(some, contexts.is_within(some)),
        mask=mask,
        table=block_table(
            mask.begins[:, :num_padded], mask.ends[:, :num_padded], num_contexts * width
        ),
        is_blind=ends <= begins,
    )


def _shifts(starts: Tensor, stops: Tensor, tokens: slice) -> Tensor:
    """Say how far each request's tokens are shifted, so that they begin with a block: [C]."""
    firsts = starts.clamp(tokens.start, tokens.stop)
    num_blocks = (stops.clamp(tokens.start, tokens.stop) - firsts + BLOCK - 1) // BLOCK
    return (num_blocks.cumsum(0) - num_blocks) * BLOCK - firsts


def _trees(contexts: _Contexts, seq_lens: Tensor, tree_mask: Tensor, count: int) -> Sequence[Part]:
    """Give each request a row of its own, whose tokens see what the tree mask says.

    Padded requests have no length here, but their `seq_lens` count where others' entries begin.
    """
    device = contexts.places.device
    firsts = (seq_lens.cumsum(0) - seq_lens) * count
    starts = firsts[:, None] + seq_lens[:, None] * torch.arange(count, device=device)
    # There are more than the mask's, for padded requests: it may end before theirs.
    entries = entries_of(tree_mask)
    parts = []
    for some in contexts.cuts():
        mask = branches_of(contexts.lengths[some], starts[some], entries)
        visible = visible_of(mask, len(contexts.places), device)
        ends = contexts.lengths[some, None].expand(mask.shape)
        parts.append(
            Part(
                tokens=slice(some.start * count, some.stop * count),
                order=None,
                slots=contexts.slots(some, visible.any(1)),
                mask=mask,
                table=block_table(torch.zeros_like(ends), ends, len(contexts.places)),
                is_blind=~visible.any(2).flatten(),
            )
        )
    return parts


def _up(count: int) -> int:
    return -(-count // BLOCK) * BLOCK
