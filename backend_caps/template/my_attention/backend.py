"""Attention over a paged KV cache, one request after the other: a correct one to start from.

Shapes: B requests and T tokens in the batch, N new tokens of one request and C tokens of its
context, Hq query heads, Hk key and value heads, D and Dv their sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from backend_caps.protocols import ForwardBatch, Layer, ModelRunner
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


@dataclass(frozen=True, slots=True)
class _Request:
    tokens: slice
    """Its place among the batch's T tokens."""
    slots: Tensor
    """[C] device: where its context stands in the KV cache."""


class MyAttentionBackend:
    """Attend to each request's context, cut to the length that the host knows."""

    def __init__(self, runner: ModelRunner) -> None:
        self._req_to_token = runner.req_to_token_pool.req_to_token
        self._kv_pool = runner.token_to_kv_pool
        self._requests: Sequence[_Request] = ()

    def init_forward_metadata(self, batch: ForwardBatch) -> None:
        """Prepare an eager forward; every layer's `forward` then reads what this left."""
        self.init_forward_metadata_out_graph(batch)
        self.init_forward_metadata_in_graph(batch)

    def init_cuda_graph_state(self, max_bs: int, max_num_tokens: int) -> None:
        """Do nothing: what declares no replay is never captured."""

    def init_forward_metadata_out_graph(self, batch: ForwardBatch) -> None:
        """Cut the page table by the lengths on the host.

        Sync: none. Allocates: B rows of the page table. Keeps: those.
        """
        assert batch.tree_mask is None, "max_speculative_topk=1 is declared: a chain, and no tree"
        table = self._req_to_token[batch.req_pool_indices]
        lengths, counts = _lengths(batch), _new_tokens(batch)
        self._requests = [
            _Request(slice(stop - count, stop), slots[:length])
            for slots, length, count, stop in zip(
                table, lengths, counts, accumulate(counts), strict=True
            )
        ]

    def init_forward_metadata_in_graph(self, batch: ForwardBatch) -> None:
        """Do nothing: what declares no replay is never captured."""

    def forward(  # noqa: PLR0913 - the engine calls it so
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        layer: Layer,
        batch: ForwardBatch,
        *,
        save_kv_cache: bool = True,
    ) -> Tensor:
        """Store this forward's keys and values, then attend to the contexts, for one layer.

        q        [T, Hq * D], device
        k        [T, Hk * D], device
        v        [T, Hk * Dv], device
        returns  [T, Hq * Dv], device, in q's dtype

        Stream: the current one. Sync: none. Allocates: the output, and a copy of each context.
        """
        if save_kv_cache:
            new_keys = k.reshape(len(k), layer.tp_k_head_num, layer.qk_head_dim)
            new_values = v.reshape(len(v), layer.tp_k_head_num, layer.v_head_dim)
            self._kv_pool.set_kv_buffer(layer, batch.out_cache_loc, new_keys, new_values)
        queries = q.reshape(len(q), layer.tp_q_head_num, layer.qk_head_dim)
        keys = self._kv_pool.get_key_buffer(layer.layer_id)
        values = self._kv_pool.get_value_buffer(layer.layer_id)
        output = q.new_zeros(len(q), layer.tp_q_head_num, layer.v_head_dim)
        for request in self._requests:
            output[request.tokens] = _attend(
                queries[request.tokens], keys[request.slots], values[request.slots], layer.scaling
            )
        return output.flatten(1)


def _lengths(batch: ForwardBatch) -> Sequence[int]:
    """Return each context's length, this forward's tokens included."""
    assert batch.seq_lens_cpu is not None, "it is there for who declares host_seq_lens=EXACT"
    lengths: list[int] = batch.seq_lens_cpu.tolist()
    return lengths


def _new_tokens(batch: ForwardBatch) -> Sequence[int]:
    """Return how many tokens each request brings; without extend lengths all bring the same."""
    if batch.extend_seq_lens is None:
        num_requests = len(batch.req_pool_indices)
        return [len(batch.out_cache_loc) // max(num_requests, 1)] * num_requests
    assert batch.extend_seq_lens_cpu is not None, "it is there for who declares EXACT, as above"
    return batch.extend_seq_lens_cpu


def _attend(q: Tensor, keys: Tensor, values: Tensor, scaling: float) -> Tensor:
    """Attend from a context's last tokens, each to all up to itself; a kernel goes here.

    q        [N, Hq, D], device
    keys     [C, Hk, D], device
    values   [C, Hk, Dv], device
    returns  [N, Hq, Dv], device
    """
    everything = torch.ones(len(q), len(keys), dtype=torch.bool, device=q.device)
    attended = scaled_dot_product_attention(
        q.transpose(0, 1),
        keys.transpose(0, 1).to(q.dtype),
        values.transpose(0, 1).to(q.dtype),
        attn_mask=everything.tril(len(keys) - len(q)),
        scale=scaling,
        enable_gqa=True,
    )
    return attended.transpose(0, 1)
