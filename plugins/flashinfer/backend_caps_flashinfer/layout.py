"""A batch as FlashInfer reads it: contexts laid out one after the other.

Shapes: P rows in the request pool, L the longest context, B requests and T tokens in the batch, C
entries of all contexts, M entries in a tree mask.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from backend_caps.protocols import ForwardBatch
from backend_caps_flashinfer.errors import MissingMirrorError


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What `plan()` is given of one batch.

    Tokens behind the last request's, which no request owns, are those of one request more.
    """

    qo_indptr_cpu: Tensor
    """[B + 1] int32, host: where each request's tokens start among the T."""
    kv_indptr_cpu: Tensor
    """[B + 1] int32, host: where each request's context starts among the C."""
    last_page_len_cpu: Tensor
    """[B] int32, host: ones; a page has one token."""
    kv_indices: Tensor
    """[C] int32, device: the slot of each context's tokens."""
    tokens_each: int | None
    """T / B; None where each request brings its own number."""
    custom_mask: Tensor | None
    """[M] bool, device: what each token sees of its context; None where it is all before it."""

    @property
    def is_decode(self) -> bool:
        """Every request brings one token, which sees its whole context."""
        return self.tokens_each == 1 and self.custom_mask is None


def layout_of(batch: ForwardBatch, req_to_token: Tensor) -> Layout:
    """Lay a batch's contexts out by its host lengths.

    req_to_token  [P, L] int32 or int64, device

    Stream: the gather from the page table goes to the current one.
    Sync: none. Allocates: the layout; while it runs, some times its indices. Keeps: nothing.
    Capture: no; what it lays out by are host values.

    Raises:
        MissingMirrorError: if the batch has no host lengths.
    """
    if batch.seq_lens_cpu is None:
        raise MissingMirrorError(field="seq_lens_cpu")
    device, num_tokens = req_to_token.device, len(batch.out_cache_loc)
    counts, lengths = [*_new_tokens(batch)], batch.seq_lens_cpu.tolist()
    if sum(counts) < num_tokens:
        counts, lengths = [*counts, num_tokens - sum(counts)], [*lengths, 0]
    num_entries = sum(lengths)
    tokens_each = None if batch.extend_seq_lens is not None else max(counts, default=0)
    return Layout(
        qo_indptr_cpu=_staged(_indptr(counts), device),
        kv_indptr_cpu=_staged(_indptr(lengths), device),
        last_page_len_cpu=_staged(torch.ones(len(counts), dtype=torch.int32), device),
        kv_indices=context_slots(req_to_token, batch.req_pool_indices, batch.seq_lens, num_entries),
        tokens_each=tokens_each,
        custom_mask=_entries(batch.tree_mask, num_entries * (tokens_each or 0)),
    )


def context_slots(table: Tensor, rows: Tensor, seq_lens: Tensor, num_entries: int) -> Tensor:
    """Gather the slots of all contexts, one context after the other.

    table        [P, L] int32 or int64, device
    rows         [B] int64, device  0 for a padded request, whose entries are slot 0
    seq_lens     [B] int64, device
    num_entries  C, the sum of the lengths
    returns      [C] int32, device

    Stream: the current one. Sync: none. Allocates: some times the result. Keeps: nothing.
    """
    stops = seq_lens.cumsum(0)
    entries = torch.arange(num_entries, device=table.device)
    owners = torch.searchsorted(stops, entries, right=True)
    owning = rows[owners]
    slots = table[owning, entries - (stops - seq_lens)[owners]]
    # What a padded row's entries of the page table name may be no slot any more.
    return slots.masked_fill(owning == 0, 0).to(torch.int32)


def blind_tokens(batch: ForwardBatch) -> Tensor:
    """Tell which tokens see nothing, as padding does: [T] bool, device.

    Stream: the current one. Sync: none. Allocates: the result, and less. Keeps: nothing.
    Capture: yes; a replay reads the batch's tensors anew.
    """
    is_blind = (batch.req_pool_indices == 0) | (batch.seq_lens <= 0)
    num_requests, num_tokens = len(is_blind), len(batch.out_cache_loc)
    if batch.extend_seq_lens is None:
        count = num_tokens // num_requests if num_requests else 0
        return is_blind[:, None].expand(-1, count).flatten()
    tokens = torch.arange(num_tokens, device=is_blind.device)
    owners = torch.searchsorted(batch.extend_seq_lens.cumsum(0), tokens, right=True)
    return torch.cat([is_blind, is_blind.new_ones(1)])[owners]


def _new_tokens(batch: ForwardBatch) -> Sequence[int]:
    if batch.extend_seq_lens_cpu is not None:
        return batch.extend_seq_lens_cpu
    if batch.extend_seq_lens is not None:
        raise MissingMirrorError(field="extend_seq_lens_cpu")
    num_requests = len(batch.req_pool_indices)
    return [len(batch.out_cache_loc) // num_requests] * num_requests if num_requests else []


def _indptr(counts: Sequence[int]) -> Tensor:
    return torch.tensor([0, *counts], dtype=torch.int64).cumsum(0).to(torch.int32)


def _staged(numbers_cpu: Tensor, device: torch.device) -> Tensor:
    """Move host numbers to where a copy to the device does not make the host wait."""
    return numbers_cpu if device.type == "cpu" else numbers_cpu.pin_memory()


def _entries(mask: Tensor | None, num_entries: int) -> Tensor | None:
    """Cut a tree mask to the entries of the batch; what it lacks, for padding, is not visible."""
    if mask is None:
        return None
    num_missing = max(num_entries - len(mask), 0)
    return torch.cat([mask[:num_entries], mask.new_zeros(num_missing)])
