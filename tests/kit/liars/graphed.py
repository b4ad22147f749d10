"""`TorchPadded`, whose graphs are made of what a backend makes of a batch and of the page table."""

from __future__ import annotations

from dataclasses import dataclass

from backend_caps_torch_native import TorchPadded
from torch import Tensor

from backend_caps.protocols import ModelRunner, TokenToKVPool
from backend_caps.runtime.attention import AttentionBackend
from backend_caps.runtime.forward_batch import ForwardBatch
from backend_caps.runtime.model.layers import AttentionLayer


@dataclass(frozen=True)
class _Rows:
    req_to_token: Tensor


@dataclass(frozen=True)
class _Site:
    req_to_token_pool: _Rows
    token_to_kv_pool: TokenToKVPool


class Graphed:
    """Be `TorchPadded` eagerly; in a graph, read `table`, and what `captured` makes of a batch."""

    def __init__(self, site: ModelRunner) -> None:
        self._kv_pool = site.token_to_kv_pool
        self.shared = site.req_to_token_pool.req_to_token
        self.table = self.shared
        self._eager: AttentionBackend = TorchPadded(site)
        self._running: AttentionBackend = self._eager

    def captured(self, batch: ForwardBatch) -> ForwardBatch:
        """Make another batch of one that is captured."""
        return batch

    def attended(self, batch: ForwardBatch) -> ForwardBatch:
        """Make another batch of one whose captured layer runs."""
        return batch

    def init_forward_metadata(self, batch: ForwardBatch) -> None:
        """Prepare an eager forward, honestly."""
        self._running = self._eager
        self._running.init_forward_metadata(batch)

    def init_cuda_graph_state(self, max_bs: int, max_num_tokens: int) -> None:
        """Make nothing."""

    def init_forward_metadata_out_graph(self, batch: ForwardBatch) -> None:
        """Do nothing."""

    def init_forward_metadata_in_graph(self, batch: ForwardBatch) -> None:
        """Prepare a captured forward of what is made of its batch."""
        self._running = TorchPadded(_Site(_Rows(self.table), self._kv_pool))
        self._running.init_forward_metadata(self.captured(batch))

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
        seen = batch if self._running is self._eager else self.attended(batch)
        return self._running.forward(q, k, v, layer, seen, save_kv_cache=save_kv_cache)
