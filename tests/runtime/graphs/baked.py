"""Backends that bake a host value into their captures, each in its own way.

Run eagerly or in pieces every one of them is right: `torch_padded` does the work, and what each
takes from the host is true then. A graph keeps what was true at its capture.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from backend_caps.runtime.attention import AttentionBackend
from backend_caps.runtime.forward_batch import ForwardBatch
from backend_caps.runtime.model.layers import AttentionLayer
from tests.runtime.graphs.rig import Site, padded

_NUM_COPIES = 7


class _Baked:
    """`torch_padded`, with all metadata made in the graph of what `_seen` makes of a batch."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._backend: AttentionBackend = padded(site)

    def init_forward_metadata(self, batch: ForwardBatch) -> None:
        """Do both parts."""
        self.init_forward_metadata_out_graph(batch)
        self.init_forward_metadata_in_graph(batch)

    def init_cuda_graph_state(self, max_bs: int, max_num_tokens: int) -> None:
        """Make nothing."""

    def init_forward_metadata_out_graph(self, batch: ForwardBatch) -> None:
        """Do nothing."""

    def init_forward_metadata_in_graph(self, batch: ForwardBatch) -> None:
        """Prepare what the host's values leave of a batch."""
        self._backend.init_forward_metadata(self._seen(batch))

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        layer: AttentionLayer,
        batch: ForwardBatch,
        *,
        save_kv_cache: bool = True,
    ) -> Tensor:
        """Attend."""
        return self._backend.forward(q, k, v, layer, batch, save_kv_cache=save_kv_cache)

    def _seen(self, batch: ForwardBatch) -> ForwardBatch:
        return batch


class BakedLength(_Baked):
    """Cut contexts at the longest length that the host knows."""

    def _seen(self, batch: ForwardBatch) -> ForwardBatch:
        assert batch.seq_lens_cpu is not None
        return replace(batch, seq_lens=batch.seq_lens.clamp(max=int(batch.seq_lens_cpu.max())))


class BakedBatchSize(_Baked):
    """Attend for as many requests as the host counts, and for one at least."""

    def _seen(self, batch: ForwardBatch) -> ForwardBatch:
        assert batch.seq_lens_cpu is not None
        num_requests = max(1, int((batch.seq_lens_cpu > 0).sum()))
        rows = batch.req_pool_indices.clone()
        rows[num_requests:] = 0
        return replace(batch, req_pool_indices=rows)


class BakedSlots(_Baked):
    """Copy the page table before the graph, to one address after the other."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        table = site.req_to_token_pool.req_to_token
        self._copies = [torch.zeros_like(table) for _ in range(_NUM_COPIES)]

    def init_forward_metadata_out_graph(self, batch: ForwardBatch) -> None:
        """Copy it."""
        del batch
        pool = self._site.req_to_token_pool
        shared = pool.req_to_token
        self._copies.append(self._copies.pop(0))
        pool.req_to_token = self._copies[0].copy_(shared)
        self._backend = padded(self._site)
        pool.req_to_token = shared


class BakedPrefix(_Baked):
    """Let requests see no more of their prefixes than the host's sum of lengths."""

    def _seen(self, batch: ForwardBatch) -> ForwardBatch:
        assert batch.seq_lens_sum is not None
        visible = torch.full_like(batch.seq_lens, batch.seq_lens_sum)
        return replace(batch, seq_lens=torch.minimum(batch.seq_lens, visible))


class AskedInGraph(_Baked):
    """Ask the device for the longest length while the graph is captured."""

    def _seen(self, batch: ForwardBatch) -> ForwardBatch:
        return replace(batch, seq_lens=batch.seq_lens.clamp(max=int(batch.seq_lens.max())))
