"""Attention by FlashInfer's paged wrappers.

FlashInfer plans a batch on the host, by its lengths and by the model's heads, before the first
layer; what it planned serves every layer that is alike. The heads are not known before the first
forward, which plans for them itself; every batch from then on is planned before its forward.

Shapes: T tokens in the batch, L the longest context, Hq query heads, Hk key and value heads, D and
Dv their sizes, S slots in the KV cache.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from backend_caps.protocols import ForwardBatch, Layer, ModelRunner
from backend_caps_flashinfer.errors import CacheDtypeError
from backend_caps_flashinfer.layout import Layout, blind_tokens, layout_of
from backend_caps_flashinfer.package import load_flashinfer
from backend_caps_flashinfer.planners import (
    DecodePlanner,
    Heads,
    Planner,
    PrefillPlanner,
    StaticBuffers,
)

_WORKSPACE_BYTES = 2**28
"""What split contexts leave behind before they are merged: twice what FlashInfer recommends, for
graphs of many requests with several tokens each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shape:
    """What is fixed for one of FlashInfer's wrappers."""

    is_decode: bool
    heads: Heads
    captured: tuple[int, int, bool] | None
    """Requests, tokens and whether there is a mask, in a graph; None: any, eagerly."""


class FlashInfer:
    """Attend by FlashInfer: one plan a batch, and its kernels in every layer.

    It has the methods of SGLang's attention backends.

    Args:
        runner: whose page table and KV cache it reads.

    Raises:
        MissingFlashInferError: FlashInfer cannot be imported.
    """

    _layout: Layout
    _captured: tuple[int, int, bool] | None
    _is_blind: Tensor

    def __init__(self, runner: ModelRunner) -> None:
        self._package = load_flashinfer()
        self._req_to_token = runner.req_to_token_pool.req_to_token
        self._kv_pool = runner.token_to_kv_pool
        # FlashInfer asks for zeros at first; its own wrappers of one stream may share it.
        self._workspace = torch.zeros(
            _WORKSPACE_BYTES, dtype=torch.uint8, device=self._req_to_token.device
        )
        self._buffers: StaticBuffers | None = None
        self._planners: dict[_Shape, Planner] = {}
        self._planned: dict[Heads, Planner] = {}
        """Of the current batch; its keys are all heads that were met so far."""

    def init_forward_metadata(self, batch: ForwardBatch) -> None:
        """Prepare an eager forward; every layer's `forward` then reads what this left.

        Sync: as `init_forward_metadata_out_graph`.

        Raises:
            MissingMirrorError: if the batch has no host lengths.
        """
        self._prepare(batch, captured=None)
        self.init_forward_metadata_in_graph(batch)

    def init_cuda_graph_state(self, max_bs: int, max_num_tokens: int) -> None:
        """Make the buffers that captured kernels read.

        Stream: the current one. Sync: none.
        Allocates: max_bs * L slots, and max_num_tokens * L bits. Each graph's own wrapper
        allocates 16 MiB more, half of them pinned.
        """
        self._buffers = StaticBuffers.for_batches(
            max_bs, max_num_tokens, self._req_to_token.shape[1], self._req_to_token.device
        )

    def init_forward_metadata_out_graph(self, batch: ForwardBatch) -> None:
        """Plan by `batch.seq_lens_cpu`, before a capture and before each replay.

        Stream: the current one, which must be the one that the graph is replayed on.
        Sync: until the last plan of the same graph is on the device; and with a tree mask, whose
        size in bits is read back. Allocates: what is planned, before it is copied to the buffers.
        Keeps: nothing of the batch. Capture: no.

        Raises:
            MissingMirrorError: if the batch has no host lengths.
        """
        assert batch.extend_seq_lens is None, "graph_replay does not declare mixed batches"
        num_requests, num_tokens = len(batch.req_pool_indices), len(batch.out_cache_loc)
        self._prepare(batch, captured=(num_requests, num_tokens, batch.tree_mask is not None))

    def init_forward_metadata_in_graph(self, batch: ForwardBatch) -> None:
        """Mark padding by `batch`, on the device.

        Stream: the current one. Sync: none. Allocates: the marks, [T]. Keeps: those.
        Capture: yes; a replay reads the batch's tensors anew.
        """
        self._is_blind = blind_tokens(batch)

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
        Sync: none, but where a layer's heads are met for the first time: they are planned for.
        Allocates: the output. Keeps: nothing; k and v are copied into the KV cache, unless
        `save_kv_cache` says that they are there.
        Capture: yes, once a forward of the same heads has run. Exact: over the whole context,
        causal or as the batch's tree mask says.

        Raises:
            CacheDtypeError: q and the KV cache have different dtypes.
        """
        if save_kv_cache:
            new_keys = k.reshape(len(k), layer.tp_k_head_num, layer.qk_head_dim)
            new_values = v.reshape(len(v), layer.tp_k_head_num, layer.v_head_dim)
            self._kv_pool.set_kv_buffer(layer, batch.out_cache_loc, new_keys, new_values)
        keys = self._kv_pool.get_key_buffer(layer.layer_id)
        values = self._kv_pool.get_value_buffer(layer.layer_id)
        if not len(q):
            return q.new_empty(0, layer.tp_q_head_num * layer.v_head_dim)
        planner = self._planner_of(_heads(layer, q, keys))
        queries = q.reshape(len(q), layer.tp_q_head_num, layer.qk_head_dim)
        output = planner.run(queries, (keys.unsqueeze(1), values.unsqueeze(1)))
        # What kernels make of a softmax over nothing is theirs to choose: it is dropped.
        return output.masked_fill(self._is_blind[:, None, None], 0).flatten(1)

    def _prepare(self, batch: ForwardBatch, captured: tuple[int, int, bool] | None) -> None:
        self._layout, self._captured = layout_of(batch, self._req_to_token), captured
        if len(batch.out_cache_loc):
            self._planned = {heads: self._plan(heads) for heads in self._planned}

    def _planner_of(self, heads: Heads) -> Planner:
        if heads not in self._planned:
            self._planned[heads] = self._plan(heads)
        return self._planned[heads]

    def _plan(self, heads: Heads) -> Planner:
        is_decode = self._layout.is_decode and heads.qk_head_dim == heads.v_head_dim
        shape = _Shape(is_decode=is_decode, heads=heads, captured=self._captured)
        planner = self._planners.get(shape)
        if planner is None:
            planner = self._planners[shape] = self._made(shape)
        planner.plan(self._layout, heads)
        return planner

    def _made(self, shape: _Shape) -> Planner:
        buffers, num_requests = None, 0
        if shape.captured is not None:
            assert self._buffers is not None, "init_cuda_graph_state comes before a capture"
            buffers, num_requests = self._buffers, shape.captured[0]
        if shape.is_decode:
            return DecodePlanner(self._package, self._workspace, shape.heads, buffers, num_requests)
        return PrefillPlanner(self._package, self._workspace, self._layout, buffers, num_requests)


def _heads(layer: Layer, q: Tensor, keys: Tensor) -> Heads:
    if keys.dtype != q.dtype:
        raise CacheDtypeError(dtype=str(q.dtype), cache_dtype=str(keys.dtype))
    return Heads(
        num_qo_heads=layer.tp_q_head_num,
        num_kv_heads=layer.tp_k_head_num,
        qk_head_dim=layer.qk_head_dim,
        v_head_dim=layer.v_head_dim,
        scaling=layer.scaling,
        dtype=q.dtype,
    )
