"""Paged attention by kernels that read every length on the device.

Shapes: B requests and T tokens in the batch, Hq query heads, Hk key and value heads, D and Dv their
sizes, L the longest context.
"""

from __future__ import annotations

from torch import Tensor

from backend_caps.protocols import ForwardBatch, Layer, ModelRunner
from backend_caps_triton.work import Cutting, Work, WorkBuffers


class TritonAttention:
    """Cut each forward into equal items of work on the device, and attend item by item.

    Args:
        runner: has the page table and the KV cache.
    """

    def __init__(self, runner: ModelRunner) -> None:
        self._req_to_token = runner.req_to_token_pool.req_to_token
        self._kv_pool = runner.token_to_kv_pool
        device = self._req_to_token.device
        num_kv_heads = self._kv_pool.get_key_buffer(0).shape[1]
        self._cutting = Cutting.for_device(device, num_kv_heads)
        self._graph_buffers: WorkBuffers | None = None
        self._work: Work

    def init_forward_metadata(self, batch: ForwardBatch) -> None:
        """Cut an eager forward into work, in memory of its own.

        Stream: the current one.
        Sync: none. Allocates: the page table's rows of the batch, and some numbers a request and an
        item. Keeps: those, until the next forward.
        """
        buffers = self._buffers(len(batch.req_pool_indices), len(batch.out_cache_loc))
        self._work = buffers.plan(batch, self._req_to_token)

    def init_cuda_graph_state(self, max_bs: int, max_num_tokens: int) -> None:
        """Make the tables that captures read, for batches of up to this size.

        Stream: the current one. Sync: none. Allocates: as a forward of that size does.
        Keeps: all of it, for good.
        """
        self._graph_buffers = self._buffers(max_bs, max_num_tokens)

    def init_forward_metadata_out_graph(self, batch: ForwardBatch) -> None:
        """Write the tables that the graph reads, by kernels in front of it.

        After it, in stream order, the page table may be overwritten: the graph has a copy.

        Stream: the current one.
        Sync: none. Allocates: nothing. Keeps: nothing; lengths and page table are copied from.
        """
        assert self._graph_buffers is not None, "init_cuda_graph_state comes before a capture"
        self._work = self._graph_buffers.plan(batch, self._req_to_token)

    def init_forward_metadata_in_graph(self, batch: ForwardBatch) -> None:
        """Do nothing: the graph reads what was written in front of it."""

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
        returns  [T, Hq * Dv], device, in q's dtype; zeros for padded tokens

        Stream: the current one.
        Sync: none. Allocates: the output, and parts of split contexts. Keeps: nothing; k and v are
        copied into the KV cache, unless `save_kv_cache` says that they are there.
        Capture: where the backend declares it. Exact: over the whole context, causal or as the
        batch's tree mask says.
        """
        if save_kv_cache:
            new_keys = k.reshape(len(k), layer.tp_k_head_num, layer.qk_head_dim)
            new_values = v.reshape(len(v), layer.tp_k_head_num, layer.v_head_dim)
            self._kv_pool.set_kv_buffer(layer, batch.out_cache_loc, new_keys, new_values)
        # Flattened first, so that the heads of a token stand side by side.
        queries = q.reshape(len(q), layer.tp_q_head_num * layer.qk_head_dim)
        output = self._work.attend(
            queries.view(len(q), layer.tp_q_head_num, layer.qk_head_dim),
            self._kv_pool.get_key_buffer(layer.layer_id),
            self._kv_pool.get_value_buffer(layer.layer_id),
            batch.tree_mask,
            layer.scaling,
        )
        return output.flatten(1)

    def _buffers(self, num_requests: int, num_tokens: int) -> WorkBuffers:
        # A tile has at least one token.
        return WorkBuffers(
            max_requests=num_requests,
            max_items=self._cutting.num_shares + num_tokens,
            width=self._req_to_token.shape[1],
            device=self._req_to_token.device,
            cutting=self._cutting,
        )
