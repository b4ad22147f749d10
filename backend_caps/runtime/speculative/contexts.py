"""Where the forwards of a speculative step stand, and what each token of a tree sees.

All that a forward needs is made on the device, of lengths that the device alone knows. What the
host has of them, all or a bound or nothing, is carried along.

The layout of masks is that of `ForwardBatch.tree_mask`: request after request, a row for each of
its tokens, an entry for each place of its context. Only the size of the whole is a number of the
host: exact where there is a mirror, else the most it can be.

Shapes: P rows in the request pool, W entries in a row, B requests in the batch, Q tokens that each
brings to a forward, C tokens at a context's end that are a tree, M entries in the mask.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from backend_caps.runtime.batch import ForwardMode, ScheduleBatch
from backend_caps.runtime.errors import EngineError
from backend_caps.runtime.forward_batch import ForwardBatch, sum_of


def tree_mask(
    visible: Tensor,
    seq_lens: Tensor,
    *,
    seq_lens_sum: int | None,
    max_context_len: int,
    buffer: Tensor | None = None,
) -> Tensor:
    """Lay out what the tokens of a tree see: all before the tree, and of the tree what they say.

    visible   [B, Q, C] bool, device  of the last C places of each context
    seq_lens  [B] int64, device       each context's length, this forward's tokens included; what
                                      is shorter than C, as a padded request is, sees all it has
    buffer    [M] bool, device        written whole
    returns   [M] bool, device        `buffer`, where there is one

    Args:
        visible: as above.
        seq_lens: as above.
        seq_lens_sum: the sum of `seq_lens`; None where there is no mirror.
        max_context_len: no length is above it, this forward's tokens included.
        buffer: memory for the mask, of a size that does not change, as graphs need.

    Stream: the current one. Sync: none. Allocates: the result, unless there is a buffer, and some
    times `visible` in 64 bits. Keeps: nothing. Capture: yes, with a buffer or without a sum: an
    exact size is that of one batch. Exact: entries behind the last request's are true.

    Raises:
        EngineError: `tree-mask-buffer`: the buffer is smaller than `mask_size` of this batch.
    """
    batch_size, num_queries, num_places = visible.shape
    needed = mask_size(
        batch_size, num_queries, seq_lens_sum=seq_lens_sum, max_context_len=max_context_len
    )
    if buffer is None:
        mask = torch.ones(needed, dtype=torch.bool, device=visible.device)
    elif buffer.numel() >= needed:
        mask = buffer.fill_(True)  # noqa: FBT003 - torch's own signature
    else:
        contexts = f"each of {batch_size} contexts of up to {max_context_len} places"
        if seq_lens_sum is not None:
            contexts = f"{batch_size} contexts of {seq_lens_sum} places together"
        raise EngineError(
            "tree-mask-buffer",
            f"the buffer for tree masks has {buffer.numel()} entries; {needed} were expected, of "
            f"{num_queries} tokens for {contexts}. Make it for the largest batch, of "
            f"max_batch_size x num_draft_tokens x max_context_len entries, or serve less at once.",
        )
    if mask.numel() == 0:
        return mask
    is_short = seq_lens < num_places
    # Where the tree would begin in each request's first row.
    firsts = (seq_lens.cumsum(0) - seq_lens) * num_queries + seq_lens - num_places
    queries = torch.arange(num_queries, device=visible.device)
    starts = firsts.unsqueeze(1) + queries * seq_lens.unsqueeze(1)
    places = starts.unsqueeze(2) + torch.arange(num_places, device=visible.device)
    # A true entry changes nothing in a minimum, so what has no place may go anywhere.
    places = places.masked_fill(is_short.view(-1, 1, 1), 0)
    values = visible | is_short.view(-1, 1, 1)
    mask.view(torch.uint8).scatter_reduce_(
        0, places.flatten(), values.flatten().view(torch.uint8), "amin"
    )
    return mask


def mask_size(
    batch_size: int, num_queries: int, *, seq_lens_sum: int | None, max_context_len: int
) -> int:
    """Count the entries of a batch's mask: exactly where the host knows, else the most there are.

    A buffer for all batches has the size of the largest one, without a sum.
    """
    longest = batch_size * max_context_len
    return num_queries * (longest if seq_lens_sum is None else seq_lens_sum)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contexts:
    """The contexts of a batch's requests, from which forwards go on."""

    req_to_token: Tensor
    """[P, W] int32, device: the page table."""
    req_pool_indices: Tensor
    """[B] int64, device: the requests' rows."""
    seq_lens: Tensor
    """[B] int64, device: tokens before the forwards that are made here."""
    seq_lens_cpu: Tensor | None
    """[B] int64, host: the mirror, or None without one."""
    upper_bound: Tensor | None
    """[B] int64, host: never below `seq_lens`; None where no backend needs it."""

    @classmethod
    def of_step(cls, batch: ScheduleBatch, req_to_token: Tensor) -> Self:
        """Take the contexts that a step finds."""
        return cls._of(batch, req_to_token, batch.upper_bound)

    @classmethod
    def of_forward(cls, forward: ForwardBatch, req_to_token: Tensor) -> Self:
        """Take the contexts that a forward leaves."""
        return cls._of(forward, req_to_token, forward.seq_lens_cpu_upper_bound)

    @classmethod
    def _of(
        cls, batch: ScheduleBatch | ForwardBatch, req_to_token: Tensor, upper_bound: Tensor | None
    ) -> Self:
        return cls(
            req_to_token=req_to_token,
            req_pool_indices=batch.req_pool_indices,
            seq_lens=batch.seq_lens,
            seq_lens_cpu=batch.seq_lens_cpu,
            upper_bound=upper_bound,
        )

    def slots(self, start: int, num_each: int) -> Tensor:
        """Look up the slots behind each context.

        returns  [B, num_each] int64, device  of the tokens `start` behind each length, and on

        Stream: the current one, on which the page table may be read. Sync: none.
        """
        places = torch.arange(start, start + num_each, device=self.seq_lens.device)
        positions = self.seq_lens[:, None] + places
        return self.req_to_token[self.req_pool_indices[:, None], positions].to(torch.int64)

    def forward(
        self,
        mode: ForwardMode,
        input_ids: Tensor,
        positions: Tensor,
        *,
        start: int,
        visible: Tensor | None = None,
        mask_buffers: Sequence[Tensor | None] = (None,),
    ) -> ForwardBatch:
        """Make a forward of Q tokens a request.

        input_ids    [B, Q] int64, device
        positions    [B, Q] int64, device  each token's place in its text
        start        how far behind each length the first token stands in the KV cache
        visible      [B, Q, C] bool, device  what each token sees of the last C tokens of its
                     context, this forward's included; None: all before it
        mask_buffers [M] bool, device  memory for the mask, None: it is made anew; two of them are
                     for the masks of the batch's halves

        Stream: the current one. Sync: none. Allocates: the forward's tensors.
        """
        size, count = input_ids.shape
        added = start + count
        seq_lens = self.seq_lens + added
        seq_lens_cpu = None if self.seq_lens_cpu is None else self.seq_lens_cpu + added
        masks: Sequence[Tensor] = ()
        if visible is not None:
            masks = _tree_masks(
                visible, seq_lens, seq_lens_cpu, self.req_to_token.shape[1], mask_buffers
            )
        return ForwardBatch(
            mode=mode,
            input_ids=input_ids.reshape(size * count),
            positions=positions.reshape(size * count),
            req_pool_indices=self.req_pool_indices,
            seq_lens=seq_lens,
            out_cache_loc=self.slots(start, count).reshape(size * count),
            seq_lens_cpu=seq_lens_cpu,
            seq_lens_sum=sum_of(seq_lens_cpu),
            seq_lens_cpu_upper_bound=None if self.upper_bound is None else self.upper_bound + added,
            tree_mask=masks[0] if len(masks) == 1 else None,
            half_masks=(masks[0], masks[1]) if len(masks) > 1 else None,
        )


def _tree_masks(
    visible: Tensor,
    seq_lens: Tensor,
    seq_lens_cpu: Tensor | None,
    max_context_len: int,
    buffers: Sequence[Tensor | None],
) -> Sequence[Tensor]:
    """Lay a batch's tree mask out, or that of each half.

    A half's own layout begins at its own memory's start. Cut out of the whole batch's, it would
    begin behind a number of entries that only the device knows.
    """
    num_first = visible.shape[0] // 2 if len(buffers) > 1 else visible.shape[0]
    parts = (slice(0, num_first), slice(num_first, None))
    return [
        tree_mask(
            visible[part],
            seq_lens[part],
            seq_lens_sum=None if seq_lens_cpu is None else sum_of(seq_lens_cpu[part]),
            max_context_len=max_context_len,
            buffer=buffer,
        )
        for part, buffer in zip(parts, buffers, strict=False)
    ]
