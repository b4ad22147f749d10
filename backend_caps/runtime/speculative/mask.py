"""Tree masks: what each token of a forward sees, where the tokens are a tree.

The layout is that of `ForwardBatch.tree_mask`: request after request, a row for each of its tokens,
an entry for each place of its context. Offsets follow from lengths on the device, so only the size
of the whole is a number of the host: exact where there is a mirror, else the most it can be.

Shapes: B requests in the batch, Q tokens that each brings, C places at the end of each context that
the tree is in, M entries in the mask.
"""

from __future__ import annotations

import torch
from torch import Tensor

from backend_caps.runtime.errors import EngineError


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
    mask = _memory(
        batch_size,
        num_queries,
        seq_lens_sum=seq_lens_sum,
        max_context_len=max_context_len,
        buffer=buffer,
        device=visible.device,
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


def _memory(
    batch_size: int,
    num_queries: int,
    *,
    seq_lens_sum: int | None,
    max_context_len: int,
    buffer: Tensor | None,
    device: torch.device,
) -> Tensor:
    """Find the memory for a mask, all of it true."""
    needed = mask_size(
        batch_size, num_queries, seq_lens_sum=seq_lens_sum, max_context_len=max_context_len
    )
    if buffer is None:
        return torch.ones(needed, dtype=torch.bool, device=device)
    if buffer.numel() < needed:
        contexts = f"each of {batch_size} contexts of up to {max_context_len} places"
        if seq_lens_sum is not None:
            contexts = f"{batch_size} contexts of {seq_lens_sum} places together"
        raise EngineError(
            "tree-mask-buffer",
            f"the buffer for tree masks has {buffer.numel()} entries; {needed} were expected, of "
            f"{num_queries} tokens for {contexts}. Make it for the largest batch, of "
            f"max_batch_size x num_draft_tokens x max_context_len entries, or serve less at once.",
        )
    return buffer.fill_(True)  # noqa: FBT003 - torch's own signature
