"""Attention over whole rows of the page table, masked by device lengths.

Shapes: B requests and T tokens in the batch, L the page table's width, Hq query heads, Hk key and
value heads, G = Hq / Hk, D and Dv their sizes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from backend_caps.protocols import ForwardBatch, Layer, ModelRunner


class AcmeFlash:
    """Score every entry of a request's row, and drop what a token does not see."""

    def __init__(self, runner: ModelRunner) -> None:
        self._req_to_token = runner.req_to_token_pool.req_to_token
        self._kv_pool = runner.token_to_kv_pool
        self._slots = self._visible = torch.empty(0)

    def init_forward_metadata(self, batch: ForwardBatch) -> None:
        """Prepare an eager forward. Stream: the current one. Sync: none."""
        self.init_forward_metadata_in_graph(batch)

    def init_cuda_graph_state(self, max_bs: int, max_num_tokens: int) -> None:
        """Do nothing: a graph makes the metadata itself."""

    def init_forward_metadata_out_graph(self, batch: ForwardBatch) -> None:
        """Do nothing: the host has no share."""

    def init_forward_metadata_in_graph(self, batch: ForwardBatch) -> None:
        """Look up each token's row, and mask it up to the token's own place.

        Stream: the current one. Sync: none. Allocates: [T, L] slots and mask. Capture: yes.
        """
        size, num_tokens = len(batch.req_pool_indices), len(batch.out_cache_loc)
        tokens = torch.arange(num_tokens, device=batch.seq_lens.device)
        if batch.extend_seq_lens is None:
            each = num_tokens // size
            owners, behind = tokens // each, each - 1 - tokens % each
        else:
            counts = batch.extend_seq_lens.to(torch.int64)
            ends = counts.cumsum(0)
            owners = torch.searchsorted(ends, tokens, right=True).clamp(max=size - 1)
            behind = ends[owners] - 1 - tokens
        places = torch.arange(self._req_to_token.shape[1], device=tokens.device)
        own = batch.seq_lens[owners] - 1 - behind
        self._visible = places[None] <= own.clamp(min=0)[:, None]
        rows = self._req_to_token[batch.req_pool_indices[owners]].to(torch.int64)
        self._slots = torch.where(self._visible, rows, 0)

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        layer: Layer,
        batch: ForwardBatch,
        *,
        save_kv_cache: bool = True,
    ) -> Tensor:
        """Store this forward's keys and values, and attend: [T, Hq * D] to [T, Hq * Dv].

        Stream: the current one. Sync: none. Allocates: [T, L, Hk, D] keys and values.
        """
        heads, groups = layer.tp_k_head_num, layer.tp_q_head_num // layer.tp_k_head_num
        if save_kv_cache:
            stored = k.view(-1, heads, layer.qk_head_dim), v.view(-1, heads, layer.v_head_dim)
            self._kv_pool.set_kv_buffer(layer, batch.out_cache_loc, *stored)
        hidden = ~self._visible[..., None, None]
        keys = self._kv_pool.get_key_buffer(layer.layer_id)[self._slots].masked_fill(hidden, 0)
        values = self._kv_pool.get_value_buffer(layer.layer_id)[self._slots].masked_fill(hidden, 0)
        queries = q.view(-1, heads, groups, layer.qk_head_dim)
        scores = torch.einsum("thgd,tlhd->thgl", queries, keys) * layer.scaling
        scores = scores.masked_fill(~self._visible[:, None, None], float("-inf"))
        attended = torch.einsum("thgl,tlhd->thgd", scores.softmax(dim=-1), values)
        return attended.reshape(len(q), layer.tp_q_head_num * layer.v_head_dim)
