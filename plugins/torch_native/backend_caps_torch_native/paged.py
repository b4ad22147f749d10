"""What both backends share: store this forward's keys and values, then attend to the context.

Shapes: T tokens in the batch, Hq query heads, Hk key and value heads, D and Dv their sizes,
S slots in the KV cache.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor

from backend_caps.protocols import ForwardBatch, Layer, ModelRunner


class PagedAttention(ABC):
    """Attention over a paged KV cache, with the methods of SGLang's attention backends."""

    def __init__(self, runner: ModelRunner) -> None:
        self._req_to_token = runner.req_to_token_pool.req_to_token
        self._kv_pool = runner.token_to_kv_pool

    def init_forward_metadata(self, batch: ForwardBatch) -> None:
        """Prepare an eager forward; every layer's `forward` then reads what this left."""
        self.init_forward_metadata_out_graph(batch)
        self.init_forward_metadata_in_graph(batch)

    @abstractmethod
    def init_cuda_graph_state(self, max_bs: int, max_num_tokens: int) -> None:
        """Make the buffers whose addresses captures keep."""

    @abstractmethod
    def init_forward_metadata_out_graph(self, batch: ForwardBatch) -> None:
        """Do the host's share, before a capture and before every replay."""

    @abstractmethod
    def init_forward_metadata_in_graph(self, batch: ForwardBatch) -> None:
        """Do the device's share, which a capture records and a replay repeats."""

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
        """Attend from this forward's tokens to their requests' contexts, for one layer.

        q        [T, Hq * D] or [T, Hq, D], device
        k        [T, Hk * D] or [T, Hk, D], device
        v        [T, Hk * Dv] or [T, Hk, Dv], device
        returns  [T, Hq * Dv], device, in q's dtype; zeros for padded tokens of length 0

        Stream: the current one.
        Sync: none. Allocates: the output, and copies of the contexts. Keeps: nothing; k and v
        are copied into the KV cache, unless `save_kv_cache` says that they are there.
        Capture: where the backend declares it. Exact: over the whole context, causal or as the
        batch's tree mask says.
        """
        if save_kv_cache:
            new_keys = k.reshape(len(k), layer.tp_k_head_num, layer.qk_head_dim)
            new_values = v.reshape(len(v), layer.tp_k_head_num, layer.v_head_dim)
            self._kv_pool.set_kv_buffer(layer, batch.out_cache_loc, new_keys, new_values)
        output = self._attend(
            q.reshape(len(q), layer.tp_q_head_num, layer.qk_head_dim),
            self._kv_pool.get_key_buffer(layer.layer_id),
            self._kv_pool.get_value_buffer(layer.layer_id),
            layer.scaling,
        )
        return output.flatten(1)

    @abstractmethod
    def _attend(self, q: Tensor, keys: Tensor, values: Tensor, scaling: float) -> Tensor:
        """Attend from q [T, Hq, D] to keys [S, Hk, D] and values [S, Hk, Dv]: [T, Hq, Dv]."""
