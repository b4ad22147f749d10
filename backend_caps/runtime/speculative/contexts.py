"""Where the forwards of a speculative step stand: behind lengths that the device alone knows.

Everything that a forward needs is made of those lengths on the device. What the host has of them,
all or a bound or nothing, is carried along, and what it does not have it does not get.

Shapes: P rows in the request pool, W entries in a row, B requests in the batch, Q tokens that each
brings to a forward, C tokens at a context's end that are a tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from backend_caps.runtime.batch import ForwardMode, ScheduleBatch
from backend_caps.runtime.forward_batch import ForwardBatch, mirror_sum
from backend_caps.runtime.speculative.mask import tree_mask


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
    """[B] int64, host: the mirror, or None where nobody keeps one."""
    seq_lens_sum: int | None
    """The mirror's sum; None where there is no mirror."""
    upper_bound: Tensor | None
    """[B] int64, host: never below `seq_lens`; None where nobody needs it."""

    @classmethod
    def of_step(cls, batch: ScheduleBatch, req_to_token: Tensor) -> Self:
        """Take the contexts that a step finds."""
        return cls(
            req_to_token=req_to_token,
            req_pool_indices=batch.req_pool_indices,
            seq_lens=batch.seq_lens,
            seq_lens_cpu=batch.seq_lens_cpu,
            seq_lens_sum=mirror_sum(batch),
            upper_bound=batch.upper_bound,
        )

    @classmethod
    def of_forward(cls, forward: ForwardBatch, req_to_token: Tensor) -> Self:
        """Take the contexts that a forward leaves."""
        return cls(
            req_to_token=req_to_token,
            req_pool_indices=forward.req_pool_indices,
            seq_lens=forward.seq_lens,
            seq_lens_cpu=forward.seq_lens_cpu,
            seq_lens_sum=forward.seq_lens_sum,
            upper_bound=forward.seq_lens_cpu_upper_bound,
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
        seq_lens_sum = None if self.seq_lens_sum is None else self.seq_lens_sum + size * added
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
            seq_lens_sum=seq_lens_sum,
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
            seq_lens_sum=None if seq_lens_cpu is None else sum(seq_lens_cpu[part].tolist()),
            max_context_len=max_context_len,
            buffer=buffer,
        )
        for part, buffer in zip(parts, buffers, strict=False)
    ]
