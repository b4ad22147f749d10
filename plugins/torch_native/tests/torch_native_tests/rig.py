"""Batches over a paged cache in which everything that no request owns is poison.

A scene's `contexts` are the truth in plain order; the pools hold the same, scattered over
random pages, and the batch's own tokens are not stored yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from backend_caps_torch_native.paged import PagedAttention
from backend_caps_torch_native.protocols import Layer
from torch import Tensor

NUM_ROWS, MAX_CONTEXT_LEN, NUM_SLOTS = 12, 24, 256


@dataclass(frozen=True, kw_only=True)
class Heads:
    """A layer of the model."""

    tp_q_head_num: int = 4
    tp_k_head_num: int = 2
    qk_head_dim: int = 8
    v_head_dim: int = 8
    layer_id: int = 0
    scaling: float = 0.3


@dataclass(frozen=True)
class Pools:
    """A runner with its page table and one layer of KV cache."""

    req_to_token: Tensor
    keys: Tensor
    values: Tensor

    @property
    def req_to_token_pool(self) -> Pools:
        """Be the page table's pool."""
        return self

    @property
    def token_to_kv_pool(self) -> Pools:
        """Be the KV cache's pool."""
        return self

    def get_key_buffer(self, _layer_id: int, /) -> Tensor:
        """Return the only layer's keys."""
        return self.keys

    def get_value_buffer(self, _layer_id: int, /) -> Tensor:
        """Return the only layer's values."""
        return self.values

    def set_kv_buffer(self, _layer: Layer, loc: Tensor, k: Tensor, v: Tensor, /) -> None:
        """Store new tokens, in the cache's own dtype."""
        self.keys[loc] = k.to(self.keys.dtype)
        self.values[loc] = v.to(self.values.dtype)


@dataclass(frozen=True, kw_only=True)
class Batch:
    """A forward's requests."""

    req_pool_indices: Tensor
    seq_lens: Tensor
    seq_lens_cpu: Tensor | None
    extend_seq_lens: Tensor | None
    extend_seq_lens_cpu: Sequence[int] | None
    out_cache_loc: Tensor
    tree_mask: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class Scene:
    """A batch, the pools it lives in and the tokens it brings."""

    pools: Pools
    heads: Heads
    batch: Batch
    q: Tensor
    k: Tensor
    v: Tensor
    contexts: Sequence[tuple[Tensor, Tensor]]
    counts: Sequence[int]
    visible: Sequence[Tensor]
    """[new tokens, length] bool, for each request: what its new tokens see."""

    def run(self, kind: type[PagedAttention]) -> Tensor:
        """Run one layer's forward: [T, Hq, Dv]."""
        backend = kind(self.pools)
        backend.init_forward_metadata(self.batch)
        return self.forward(backend)

    def forward(self, backend: PagedAttention, *, save_kv_cache: bool = True) -> Tensor:
        """Run a prepared backend's forward: [T, Hq, Dv]."""
        output = backend.forward(
            self.q, self.k, self.v, self.heads, self.batch, save_kv_cache=save_kv_cache
        )
        return output.reshape(len(output), self.heads.tp_q_head_num, self.heads.v_head_dim)

    def select(self, order: Sequence[int]) -> Scene:
        """Take some of the requests, in this order, in the same pools."""
        rows = torch.tensor(order, dtype=torch.int64)
        batch, counts = self.batch, [self.counts[i] for i in order]
        visible = [self.visible[i] for i in order]
        extends = batch.extend_seq_lens
        return replace(
            self,
            batch=Batch(
                req_pool_indices=batch.req_pool_indices[rows],
                seq_lens=batch.seq_lens[rows],
                seq_lens_cpu=batch.seq_lens[rows],
                extend_seq_lens=None if extends is None else extends[rows],
                extend_seq_lens_cpu=None if extends is None else counts,
                out_cache_loc=self.take(batch.out_cache_loc, order),
                tree_mask=None if batch.tree_mask is None else flat_mask(visible),
            ),
            q=self.take(self.q, order),
            k=self.take(self.k, order),
            v=self.take(self.v, order),
            contexts=[self.contexts[i] for i in order],
            counts=counts,
            visible=visible,
        )

    def take(self, tokens: Tensor, order: Sequence[int]) -> Tensor:
        """Take these requests' tokens."""
        parts = torch.split(tokens, list(self.counts))
        return torch.cat([tokens[:0], *(parts[i] for i in order)])

    def on(self, device: str) -> Scene:
        """Move what lives on a device; the mirror stays."""
        batch = self.batch
        extends, mask = batch.extend_seq_lens, batch.tree_mask
        pools = self.pools
        return replace(
            self,
            pools=Pools(*(t.to(device) for t in (pools.req_to_token, pools.keys, pools.values))),
            batch=replace(
                batch,
                req_pool_indices=batch.req_pool_indices.to(device),
                seq_lens=batch.seq_lens.to(device),
                extend_seq_lens=None if extends is None else extends.to(device),
                out_cache_loc=batch.out_cache_loc.to(device),
                tree_mask=None if mask is None else mask.to(device),
            ),
            q=self.q.to(device),
            k=self.k.to(device),
            v=self.v.to(device),
        )


def flat_mask(visible: Sequence[Tensor], num_spare: int = 0) -> Tensor:
    """Lay what tokens see out as a tree mask: [M] bool, with spare entries that all are true."""
    spare = torch.ones(num_spare, dtype=torch.bool)
    return torch.cat([*(rows.flatten() for rows in visible), spare])
