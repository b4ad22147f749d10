"""One of vLLM's backends, as the kit's runtime calls one: its builder, its batches, its layers.

Shapes: B requests and T tokens in a batch, Hq query heads, Hk key and value heads, D and Dv their
sizes.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import NamedTuple, cast

import torch
from torch import Tensor

from backend_caps.kit.layer_variants import PLAIN, LayerVariant
from backend_caps.kit.scenarios import VERIFIED
from backend_caps.kit.scenes import Pools
from backend_caps.runtime.batch import ForwardMode
from backend_caps.runtime.forward_batch import ForwardBatch
from backend_caps.runtime.model.layers import AttentionLayer
from backend_caps_vllm.kit.batches import HostLengths, InputBuffers, InputTensors, common_metadata
from backend_caps_vllm.kit.caches import joined_cache
from backend_caps_vllm.kit.engine_modules import VLLM
from backend_caps_vllm.kit.order import OrderedBatch
from backend_caps_vllm.kit.servers import (
    attention_layer,
    cache_dtype_of,
    cache_spec,
    layer_of,
    name_of,
    num_blocks_of,
    server_config,
)

_GraphKey = tuple[bool, int, int]
"""Whether a graph's batches are uniform, their requests, and their tokens."""


class ServedLayer(NamedTuple):
    """A layer of a model, with what vLLM makes for it."""

    layer: SimpleNamespace
    """vLLM's own, as far as it is read."""
    implementation: SimpleNamespace
    """Which the class makes for each layer."""
    cache: Tensor
    """As the implementation takes it."""


class Tokens(NamedTuple):
    """The new tokens of a batch, in vLLM's order."""

    query: Tensor
    """[T, Hq, D], device."""
    key: Tensor
    """[T, Hk, D], device."""
    value: Tensor
    """[T, Hk, Dv], device."""


def variant_arguments(
    variant: LayerVariant, num_heads: int, device: torch.device
) -> dict[str, object]:
    """Return the arguments of an implementation that plain layers do not give."""
    given: dict[str, object] = {}
    if variant.logit_cap is not None:
        given["logits_soft_cap"] = variant.logit_cap
    sinks = variant.sinks(num_heads)
    if sinks is not None:
        given["sinks"] = sinks.to(device)
    return given


class Adapted:
    """A backend of vLLM on pools of the kit.

    A graph of vLLM's holds the metadata that was built at its capture, over persistent buffers:
    each replay refills those and builds again, for what the builder keeps in buffers of its own.

    Args:
        vllm: its modules.
        implementation: the class.
        pools: the kit's.
        variant: what the layers have beside plain attention.
    """

    def __init__(
        self, vllm: VLLM, implementation: type, pools: Pools, variant: LayerVariant = PLAIN
    ) -> None:
        self._vllm, self._pools, self._variant = vllm, pools, variant
        self._backend = cast("SimpleNamespace", implementation)  # its methods are static
        if hasattr(self._backend, "set_head_size_v"):  # by vLLM's layer, before all else
            self._backend.set_head_size_v(layer_of(pools).v_head_dim)
        self._longest = pools.req_to_token.shape[1]
        # vLLM's windows count the token itself.
        self._window = None if variant.num_before is None else variant.num_before + 1
        self._spec = self._make_spec()
        self._num_blocks = num_blocks_of(vllm, self._spec, self._longest)
        config = self._make_config(num_tokens_each=VERIFIED)
        with vllm.config.set_current_vllm_config(config):
            self._layers = self._make_layers(config)
        self._builder = self._make_builder(config)
        self._kept: dict[int, SimpleNamespace] = {}
        self._buffers: InputBuffers | None = None
        self._captured: dict[_GraphKey, SimpleNamespace] = {}
        self._batch: ForwardBatch | None = None
        self._order: OrderedBatch
        self._inputs: InputTensors | None = None
        self._metadata: SimpleNamespace | None = None

    def _make_layers(self, config: SimpleNamespace) -> dict[int, ServedLayer]:
        """Make what vLLM has for each layer, by its id."""
        caches, layers = self._make_caches(), dict[int, ServedLayer]()
        for own in self._pools.layers:
            layer = self._make_layer(own, config)
            implementation = self._make_implementation(own, layer)
            layers[own.layer_id] = ServedLayer(layer, implementation, caches[own.layer_id])
        return layers

    def _make_caches(self) -> Tensor:
        """Return the KV caches of all layers [A, ...], in the memory of the pools."""
        return joined_cache(self._pools)

    def _make_spec(self) -> SimpleNamespace:
        """Make vLLM's description of the KV cache."""
        return cache_spec(self._vllm, self._pools, self._window)

    def _make_config(
        self, *, num_tokens_each: int, max_num_tokens: int | None = None
    ) -> SimpleNamespace:
        """Make the configuration of a server, as `server_config` does."""
        self._decode_query_len = num_tokens_each
        return server_config(
            self._vllm, self._pools, num_tokens_each=num_tokens_each, max_num_tokens=max_num_tokens
        )

    def _make_layer(self, own: AttentionLayer, config: SimpleNamespace) -> SimpleNamespace:
        """Make vLLM's layer, as far as it is read."""
        del config
        return attention_layer(own, self._pools.keys.device, self._variant)

    def _make_implementation(self, own: AttentionLayer, layer: SimpleNamespace) -> SimpleNamespace:
        """Make the implementation, as vLLM's layer does."""
        del layer
        made: SimpleNamespace = self._backend.get_impl_cls()(
            num_heads=own.tp_q_head_num,
            head_size=own.qk_head_dim,
            scale=own.scaling,
            num_kv_heads=own.tp_k_head_num,
            alibi_slopes=None,
            sliding_window=self._window,
            kv_cache_dtype=cache_dtype_of(self._pools),
            **variant_arguments(self._variant, own.tp_q_head_num, self._pools.keys.device),
        )
        return made

    def _make_builder(self, config: SimpleNamespace) -> SimpleNamespace:
        layers = {name_of(own): self._layers[own.layer_id].layer for own in self._pools.layers}
        config.compilation_config.static_forward_context.update(layers)
        made: SimpleNamespace = self._backend.get_builder_cls()(
            self._spec, [*layers], config, self._pools.keys.device
        )
        return made

    def init_forward_metadata(self, batch: ForwardBatch) -> None:
        """Prepare an eager forward."""
        self._serve_verifies_of(batch)
        self._batch, self._order = batch, OrderedBatch(batch)
        if self._builder.reorder_batch_threshold is not None:
            self._order = OrderedBatch.of(batch, self._decode_query_len)
        self._inputs = self._inputs_of(self._order.batch)
        self._metadata = self._builder.build(0, self._common(self._inputs, self._order.batch))

    def _serve_verifies_of(self, batch: ForwardBatch) -> None:
        """Make the builder of a server whose verifies are as long as a batch's."""
        num_each = batch.num_tokens // max(1, batch.batch_size)
        is_verify = batch.mode is ForwardMode.VERIFY and batch.extend_seq_lens is None
        if is_verify and num_each != self._decode_query_len:
            # One is kept for each length: a forward that still runs reads its buffers.
            self._kept[self._decode_query_len] = self._builder
            config = self._make_config(num_tokens_each=num_each)
            kept = self._kept.get(num_each)
            self._builder = self._make_builder(config) if kept is None else kept

    def init_cuda_graph_state(self, max_bs: int, max_num_tokens: int) -> None:
        """Make the buffers of graphs, of a server that verifies so many tokens of each request."""
        config = self._make_config(
            num_tokens_each=max_num_tokens // max_bs, max_num_tokens=max_num_tokens
        )
        self._builder = self._make_builder(config)
        self._buffers = InputBuffers(
            max_bs, max_num_tokens, self._num_blocks, self._pools.keys.device
        )
        self._captured = {}

    def init_forward_metadata_out_graph(self, batch: ForwardBatch) -> None:
        """Prepare a capture, or a replay of a graph that was captured."""
        assert self._buffers is not None, "buffers are made before graphs are captured"
        key = batch.extend_seq_lens is None, batch.batch_size, batch.num_tokens
        if key not in self._captured:
            dummy = self._buffers.load_dummy(batch.batch_size, batch.num_tokens)
            common = self._common(dummy, batch, is_capture=True)
            self._captured[key] = self._builder.build_for_cudagraph_capture(common)
        self._batch, self._order = batch, OrderedBatch(batch)
        self._inputs = self._buffers.load(self._inputs_of(batch))
        self._builder.build(0, self._common(self._inputs, batch))
        self._metadata = self._captured[key]

    def init_forward_metadata_in_graph(self, batch: ForwardBatch) -> None:
        """Do nothing: vLLM's builders run before a graph."""

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
        """Attend in one layer.

        q        [T, Hq * D], device
        k        [T, Hk * D], device
        v        [T, Hk * Dv], device
        returns  [T, Hq * Dv], device
        """
        inputs = self._prepared(batch)
        tokens = Tokens(
            self._order.taken(q).view(-1, layer.tp_q_head_num, layer.qk_head_dim),
            self._order.taken(k).view(-1, layer.tp_k_head_num, layer.qk_head_dim),
            self._order.taken(v).view(-1, layer.tp_k_head_num, layer.v_head_dim),
        )
        own = self._layers[layer.layer_id]
        output = self._attend(own, tokens, inputs.slot_mapping if save_kv_cache else None)
        return self._order.returned(output)

    def _attend(self, own: ServedLayer, tokens: Tokens, slots: Tensor | None) -> Tensor:
        """Attend as vLLM's own layer calls its implementation: [T, Hq * Dv].

        slots  [T] int64: where the tokens are stored; None: nowhere
        """
        query, key, value = tokens
        if slots is not None and not self._backend.forward_includes_kv_cache_update:
            own.implementation.do_kv_cache_update(own.layer, key, value, own.cache, slots)
        output = query.new_empty(*query.shape[:2], value.shape[-1])
        own.implementation.forward(
            own.layer, query, key, value, own.cache, self._metadata, output=output
        )
        return output.flatten(1)

    def _prepared(self, batch: ForwardBatch) -> InputTensors:
        """Return the tensors of the batch that was prepared."""
        assert self._inputs is not None, "a batch is prepared before its layers run"
        assert self._batch is not None, "a batch is prepared before its layers run"
        assert self._batch.num_tokens == batch.num_tokens, "it is the one that was prepared"
        return self._inputs

    def _common(
        self, own: InputTensors, batch: ForwardBatch, *, is_capture: bool = False
    ) -> SimpleNamespace:
        return common_metadata(self._vllm, own, HostLengths(batch, self._longest, is_capture))

    def _inputs_of(self, batch: ForwardBatch) -> InputTensors:
        return InputTensors.of(batch, self._pools, self._num_blocks)
