"""Attention that slices each request by its host length.

Shapes: L the longest context, B requests and T tokens in this batch, Hq query heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from backend_caps import BackendCapsError
from backend_caps.protocols import ForwardBatch
from backend_caps_torch_native.paged import PagedAttention


@dataclass(eq=False, kw_only=True)
class MissingMirrorError(BackendCapsError):
    """Raised where a batch comes without the host lengths that this backend declares to read."""

    backend: str
    field: str

    @property
    def message(self) -> str:
        """What is missing, and who should have supplied it."""
        return (
            f"backend {self.backend!r} got a batch whose {self.field} is None; it declares "
            f"host_seq_lens=EXACT. Configure the FutureMap by a plan that names this backend."
        )


@dataclass(eq=False, kw_only=True)
class TreeMaskError(BackendCapsError):
    """Raised where a batch's tokens are a tree, and this backend attends to chains alone."""

    backend: str
    num_entries: int

    @property
    def message(self) -> str:
        """What came, what the backend takes, and how to give it that."""
        return (
            f"backend {self.backend!r} got a batch with a tree mask of {self.num_entries} entries; "
            f"it declares max_speculative_topk=1, a chain, where each token sees all before it. "
            f"Set --speculative-eagle-topk to 1, or use another backend."
        )


@dataclass(frozen=True, slots=True)
class _Request:
    tokens: slice
    """Its place among the batch's T tokens."""
    slots: Tensor
    """[length] device: where its context stands in the KV cache."""
    visible: Tensor
    """[new tokens, length] bool, device: causal, aligned to the context's end."""


class TorchNative(PagedAttention):
    """Slice every context by its exact length, one request after the other."""

    _requests: Sequence[_Request]

    def init_cuda_graph_state(self, max_bs: int, max_num_tokens: int) -> None:
        """Do nothing: this backend is never captured."""

    def init_forward_metadata_out_graph(self, batch: ForwardBatch) -> None:
        """Slice the page table by `batch.seq_lens_cpu`.

        Stream: the gather from the page table goes to the current one.
        Sync: none. Allocates: B rows of the page table, and a mask a request. Keeps: those.
        Capture: no; what it slices by are host values.

        Raises:
            TreeMaskError: if the batch's tokens are a tree.
            MissingMirrorError: if the batch has no host lengths.
        """
        if batch.tree_mask is not None:
            raise TreeMaskError(backend="torch_native", num_entries=len(batch.tree_mask))
        if batch.seq_lens_cpu is None:
            raise MissingMirrorError(backend="torch_native", field="seq_lens_cpu")
        lengths: list[int] = batch.seq_lens_cpu.tolist()
        table = self._req_to_token[batch.req_pool_indices, : max(lengths, default=0)]
        counts = _new_tokens(batch)
        self._requests = [
            _Request(
                slice(stop - count, stop), slots[:length], _causal(count, length, slots.device)
            )
            for slots, length, count, stop in zip(
                table, lengths, counts, accumulate(counts), strict=True
            )
        ]

    def init_forward_metadata_in_graph(self, batch: ForwardBatch) -> None:
        """Do nothing: this backend is never captured."""

    def _attend(self, q: Tensor, keys: Tensor, values: Tensor, scaling: float) -> Tensor:
        output = q.new_zeros(*q.shape[:2], values.shape[-1])
        for request in self._requests:
            attended = scaled_dot_product_attention(
                q[request.tokens].transpose(0, 1),
                keys[request.slots].transpose(0, 1).to(q.dtype),
                values[request.slots].transpose(0, 1).to(q.dtype),
                attn_mask=request.visible,
                scale=scaling,
                enable_gqa=True,
            )
            output[request.tokens] = attended.transpose(0, 1)
        return output


def _new_tokens(batch: ForwardBatch) -> Sequence[int]:
    if batch.extend_seq_lens_cpu is not None:
        return batch.extend_seq_lens_cpu
    if batch.extend_seq_lens is not None:
        raise MissingMirrorError(backend="torch_native", field="extend_seq_lens_cpu")
    num_requests = len(batch.req_pool_indices)
    return [len(batch.out_cache_loc) // num_requests] * num_requests if num_requests else []


def _causal(count: int, length: int, device: torch.device) -> Tensor:
    everything = torch.ones(count, length, dtype=torch.bool, device=device)
    return everything.tril(length - count)
