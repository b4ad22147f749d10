"""`TorchPadded`, of which a specimen changes one thing.

Shapes: R rows of N tokens, L the longest context.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from backend_caps_torch_native import TorchPadded
from torch import Tensor

from backend_caps import protocols
from backend_caps.protocols import ModelRunner, TokenToKVPool
from backend_caps.runtime import AttentionBackend, AttentionLayer, ForwardBatch


class Padded:
    """Hand all on to `TorchPadded`, and to its eager metadata what `seen` gives."""

    def __init__(self, site: ModelRunner) -> None:
        self._backend: AttentionBackend = TorchPadded(site)
        self._table = site.req_to_token_pool.req_to_token
        self._kv_pool = site.token_to_kv_pool

    def seen(self, batch: ForwardBatch) -> ForwardBatch:
        """Make another batch of one."""
        return batch

    def before(self, batch: ForwardBatch) -> ForwardBatch:
        """Make another batch of one whose layer runs."""
        return batch

    def saved(self, batch: ForwardBatch, *, save_kv_cache: bool) -> bool:
        """Say whether new tokens are stored, right before they are attended to."""
        del batch
        return save_kv_cache

    def after(self, batch: ForwardBatch, output: Tensor) -> Tensor:
        """Make another output of a layer's."""
        del batch
        return output

    def init_forward_metadata(self, batch: ForwardBatch) -> None:
        """Prepare what is seen of it."""
        self._backend.init_forward_metadata(self.seen(batch))

    def init_cuda_graph_state(self, max_bs: int, max_num_tokens: int) -> None:
        """Hand it on."""
        self._backend.init_cuda_graph_state(max_bs, max_num_tokens)

    def init_forward_metadata_out_graph(self, batch: ForwardBatch) -> None:
        """Hand it on."""
        self._backend.init_forward_metadata_out_graph(batch)

    def init_forward_metadata_in_graph(self, batch: ForwardBatch) -> None:
        """Hand it on."""
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
        """Attend between `before` and `after`."""
        batch = self.before(batch)
        saves = self.saved(batch, save_kv_cache=save_kv_cache)
        output = self._backend.forward(q, k, v, layer, batch, save_kv_cache=saves)
        return self.after(batch, output)


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


class Shown(TorchPadded):
    """Take a batch for what `taken` gives, and let its tokens see what `visible` gives."""

    def taken(self, batch: ForwardBatch) -> ForwardBatch:
        """Make another batch of one."""
        return batch

    def visible(self, batch: ForwardBatch, seen: Tensor) -> Tensor:
        """Make another mask of one, [R, N, L] bool."""
        del batch
        return seen

    def init_forward_metadata_in_graph(self, batch: protocols.ForwardBatch) -> None:
        """Prepare what is made of it."""
        assert isinstance(batch, ForwardBatch)
        super().init_forward_metadata_in_graph(self.taken(batch))
        seen = self.visible(batch, self._metadata.visible)
        self._metadata = replace(self._metadata, visible=seen)


class Turned(Shown):
    """Add the contexts of some rows up from their other end."""

    def is_turned(self, batch: ForwardBatch, rows: Tensor) -> Tensor:
        """Say which of some rows are, [R]: bool."""
        del batch
        return torch.ones_like(rows, dtype=torch.bool)

    def init_forward_metadata_in_graph(self, batch: protocols.ForwardBatch) -> None:
        """Prepare it, and turn rows."""
        super().init_forward_metadata_in_graph(batch)
        assert isinstance(batch, ForwardBatch)
        slots, seen = self._metadata.slots, self._metadata.visible
        turned = self.is_turned(batch, torch.arange(len(slots), device=slots.device))
        self._metadata = replace(
            self._metadata,
            slots=torch.where(turned[:, None], slots.flip(1), slots),
            visible=torch.where(turned[:, None, None], seen.flip(2), seen),
        )
