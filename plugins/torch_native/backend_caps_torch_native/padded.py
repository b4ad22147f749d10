"""Attention over padded contexts, masked on the device.

Shapes: L the longest context, B requests and T tokens in this batch, Hq query heads. The T
tokens stand in R rows of N: a row is a request where all bring the same number of tokens
(R = B), otherwise a token (N = 1). A tree mask has M entries. T, B, R, N and M are shapes: no
length is ever read.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from backend_caps.protocols import ForwardBatch
from backend_caps_torch_native.paged import PagedAttention

_TOKENS_AT_ONCE = 2**16
"""Padded context tokens whose keys and values are gathered together: 256 MiB in bfloat16 with 8
heads of 128. So are their entries of a tree mask: 0.5 MiB of indices for each of N tokens. It
bounds the memory, not the result."""


@dataclass(frozen=True, slots=True)
class _Metadata:
    slots: Tensor
    """[R, L] device: where the contexts stand in the KV cache."""
    visible: Tensor
    """[R, N, L] bool, device: what each token sees of its context."""
    is_blind: Tensor
    """[T] bool, device: the tokens that see nothing, which are padding."""


class TorchPadded(PagedAttention):
    """Pad every context to the longest one, and mask it by device lengths."""

    _metadata: _Metadata

    def init_cuda_graph_state(self, max_bs: int, max_num_tokens: int) -> None:
        """Do nothing: a graph makes the metadata itself, in memory of its own."""

    def init_forward_metadata_out_graph(self, batch: ForwardBatch) -> None:
        """Do nothing: the host has no share."""

    def init_forward_metadata_in_graph(self, batch: ForwardBatch) -> None:
        """Gather the page table and mask it by `batch`, all on the device.

        Stream: the current one.
        Sync: none. Allocates: slots and mask, (R + T) * L; while it runs some more masks, and a
        copy of the tree's. Keeps: slots and mask, until the next forward.
        Capture: yes; a replay reads the batch's tensors and the page table anew.
        """
        extends = batch.extend_seq_lens
        assert extends is None or batch.tree_mask is None, "trees have the same number of tokens"
        rows, ends = (
            _rows_of_requests(batch) if extends is None else _rows_of_tokens(batch, extends)
        )
        ends = torch.where(rows[:, None] == 0, 0, ends)
        table, mask = self._req_to_token[rows], batch.tree_mask
        self._metadata = (
            _metadata(table, ends)
            if mask is None
            else _metadata_of_tree(table, ends, mask, batch.seq_lens)
        )

    def _attend(self, q: Tensor, keys: Tensor, values: Tensor, scaling: float) -> Tensor:
        slots, visible = self._metadata.slots, self._metadata.visible
        step = max(1, _TOKENS_AT_ONCE // slots.shape[1])
        queries = q.reshape(*visible.shape[:2], *q.shape[1:])
        parts = [
            scaled_dot_product_attention(
                some_queries.transpose(1, 2),
                keys[some_slots].transpose(1, 2).to(q.dtype),
                values[some_slots].transpose(1, 2).to(q.dtype),
                attn_mask=some_visible[:, None],
                scale=scaling,
                enable_gqa=True,
            )
            for some_queries, some_slots, some_visible in zip(
                *(torch.split(x, step) for x in (queries, slots, visible)), strict=True
            )
        ]
        output = torch.cat(parts).transpose(1, 2).flatten(0, 1)
        # A softmax over nothing is undefined: whatever the kernel made of it is dropped.
        return output.masked_fill(self._metadata.is_blind[:, None, None], 0)


def _rows_of_requests(batch: ForwardBatch) -> tuple[Tensor, Tensor]:
    """Return pool rows [R] and how much of its context each token sees [R, N]; R is B."""
    num_requests = len(batch.req_pool_indices)
    count = len(batch.out_cache_loc) // num_requests if num_requests else 1
    later = torch.arange(count - 1, -1, -1, device=batch.seq_lens.device)
    return batch.req_pool_indices, batch.seq_lens[:, None] - later


def _rows_of_tokens(batch: ForwardBatch, extend_seq_lens: Tensor) -> tuple[Tensor, Tensor]:
    """Return pool rows [R] and how much of its context each token sees [R, 1]; R is T.

    Tokens past the last request's belong to the padding row.
    """
    stops = extend_seq_lens.cumsum(0)
    tokens = torch.arange(len(batch.out_cache_loc), device=stops.device)
    owners = torch.searchsorted(stops, tokens, right=True)
    is_padding = owners == len(stops)
    owners = owners.clamp(max=len(stops) - 1)
    rows = torch.where(is_padding, 0, batch.req_pool_indices[owners])
    later = stops[owners] - tokens - 1
    return rows, (batch.seq_lens[owners] - later)[:, None]


def _metadata(table: Tensor, ends: Tensor) -> _Metadata:
    """Mask the page table [R, L] by what each token sees of it, ends [R, N]."""
    positions = torch.arange(table.shape[1], device=table.device)
    longest = ends[:, -1:]
    # A mask alone would leak: 0 * NaN is NaN. What nobody sees reads the context's first token
    # instead, which everybody sees, so stale slots and stale page tables are never touched.
    first = torch.where(longest > 0, table[:, :1], 0)
    slots = torch.where(positions < longest, table, first)
    return _Metadata(slots, positions < ends[:, :, None], (ends <= 0).flatten())


def _metadata_of_tree(table: Tensor, ends: Tensor, mask: Tensor, seq_lens: Tensor) -> _Metadata:
    """Mask the page table [B, L] by a tree mask [M], up to where a request's last token stands."""
    positions = torch.arange(table.shape[1], device=table.device)
    entries = _entries(mask, seq_lens, ends.shape[1], positions)
    visible = (positions < ends[:, -1:, None]) & entries
    is_seen = visible.any(1)
    # As above, but a mask may hide any position, the first one too: a seen one is looked for.
    seen = table.gather(1, is_seen.int().argmax(1, keepdim=True))
    seen = torch.where(is_seen.any(1, keepdim=True), seen, 0)
    slots = torch.where(is_seen, table, seen)
    return _Metadata(slots, visible, ~visible.any(2).flatten())


def _entries(mask: Tensor, seq_lens: Tensor, num_tokens: int, positions: Tensor) -> Tensor:
    """Spread a tree mask [M] over positions [L]: [B, N, L], true or not past a context's end."""
    lengths = seq_lens[:, None, None]
    tokens = torch.arange(num_tokens, device=mask.device)[:, None]
    starts = (lengths.cumsum(0) - lengths) * num_tokens + tokens * lengths
    # One entry more, for padded requests: what the mask holds may end before theirs.
    longer = torch.cat([mask, mask.new_zeros(1)])
    step = max(1, _TOKENS_AT_ONCE // len(positions))
    return torch.cat(
        [longer[(some + positions).clamp(max=len(mask))] for some in torch.split(starts, step)]
    )
