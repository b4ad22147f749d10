"""`TorchPadded`, with eager metadata made of what a backend makes of a batch."""

from __future__ import annotations

from backend_caps_torch_native import TorchPadded
from torch import Tensor

from backend_caps.protocols import ModelRunner
from backend_caps.runtime.attention import AttentionBackend
from backend_caps.runtime.forward_batch import ForwardBatch
from backend_caps.runtime.model.layers import AttentionLayer


class Padded:
    """Hand all on to `TorchPadded`, and to its eager metadata what `seen` gives."""

    def __init__(self, site: ModelRunner) -> None:
        self._backend: AttentionBackend = TorchPadded(site)

    def seen(self, batch: ForwardBatch) -> ForwardBatch:
        """Make another batch of one."""
        return batch

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
        """Hand it on."""
        return self._backend.forward(q, k, v, layer, batch, save_kv_cache=save_kv_cache)
