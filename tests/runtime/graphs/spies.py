"""Backends that watch, or that share less with the scheduler than `torch_padded`."""

from __future__ import annotations

from torch import Tensor

from backend_caps.runtime import AttentionLayer, ForwardBatch
from tests.runtime.graphs.rig import Site, make_rows, padded


class WatchedPadded:
    """`torch_padded`, and what it received."""

    def __init__(self, site: Site) -> None:
        self._backend = padded(site)
        self.states: list[tuple[int, int]] = []
        """Sizes of `init_cuda_graph_state`."""
        self.out_graph: list[ForwardBatch] = []
        """Batches of `init_forward_metadata_out_graph`."""
        self.in_graph: list[ForwardBatch] = []
        """Batches of `init_forward_metadata_in_graph`."""
        self.attended: list[ForwardBatch] = []
        """Batches of `forward`, one a layer."""

    def init_forward_metadata(self, batch: ForwardBatch) -> None:
        """Pass it on."""
        self._backend.init_forward_metadata(batch)

    def init_cuda_graph_state(self, max_bs: int, max_num_tokens: int) -> None:
        """Note it, and pass it on."""
        self.states.append((max_bs, max_num_tokens))
        self._backend.init_cuda_graph_state(max_bs, max_num_tokens)

    def init_forward_metadata_out_graph(self, batch: ForwardBatch) -> None:
        """Note it, and pass it on."""
        self.out_graph.append(batch)
        self._backend.init_forward_metadata_out_graph(batch)

    def init_forward_metadata_in_graph(self, batch: ForwardBatch) -> None:
        """Note it, and pass it on."""
        self.in_graph.append(batch)
        self._backend.init_forward_metadata_in_graph(batch)

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
        """Note it, and pass it on."""
        self.attended.append(batch)
        return self._backend.forward(q, k, v, layer, batch, save_kv_cache=save_kv_cache)


class CopiedTable(WatchedPadded):
    """Read a copy of the page table, made out of the graph: PRE_REPLAY is true of it."""

    def __init__(self, site: Site) -> None:
        self._shared = site.req_to_token_pool.req_to_token
        own = make_rows(self._shared.device)
        self._own = own.req_to_token
        super().__init__(Site(own, site.token_to_kv_pool))

    def init_forward_metadata(self, batch: ForwardBatch) -> None:
        """Copy the page table first."""
        self._own.copy_(self._shared)
        super().init_forward_metadata(batch)

    def init_forward_metadata_out_graph(self, batch: ForwardBatch) -> None:
        """Copy the page table."""
        self._own.copy_(self._shared)
        super().init_forward_metadata_out_graph(batch)
