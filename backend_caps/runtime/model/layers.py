"""One layer of a Llama-architecture decoder: attention, then an MLP.

Shapes: T tokens in the batch, H features of a token, Hq query heads, Hk key and value heads, D
their size.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import silu

from backend_caps.runtime.layer import AttentionLayer
from backend_caps.runtime.model.config import LlamaConfig
from backend_caps.runtime.model.linear import Linear, NamedWeights, RMSNorm, named
from backend_caps.runtime.model.rotary import Rotation


class AttentionContext(Protocol):
    """What a layer asks of the forward that it is a part of: `ForwardContext`, or a draft's."""

    def attend(self, layer: AttentionLayer, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend in one layer: [T, Hq * D], [T, Hk * D], [T, Hk * D] to [T, Hq * D]."""


class Attention:
    """Queries, keys and values of each token, and what a backend makes of them.

    Args:
        config: the model's shape.
        layer_id: the layer's place in the KV cache.
        device: where the weights are.
        dtype: of weights, inputs and outputs.
        in_features: features of a token that queries, keys and values are made of; None is H.
    """

    def __init__(
        self,
        config: LlamaConfig,
        layer_id: int,
        device: torch.device,
        dtype: torch.dtype,
        *,
        in_features: int | None = None,
    ) -> None:
        size, has_bias = config.head_dim, config.attention_bias
        num_queries, num_keys = config.num_attention_heads, config.num_key_value_heads
        self.layer = AttentionLayer(
            layer_id=layer_id,
            tp_q_head_num=num_queries,
            tp_k_head_num=num_keys,
            qk_head_dim=size,
            v_head_dim=size,
            scaling=size**-0.5,
        )
        """What the backend has to know of this layer."""
        self._qkv_proj = Linear(
            in_features or config.hidden_size,
            {"q_proj": num_queries * size, "k_proj": num_keys * size, "v_proj": num_keys * size},
            has_bias=has_bias,
            device=device,
            dtype=dtype,
        )
        self._o_proj = Linear(
            num_queries * size,
            {"o_proj": config.hidden_size},
            has_bias=has_bias,
            device=device,
            dtype=dtype,
        )

    def __call__(self, hidden: Tensor, rotation: Rotation, context: AttentionContext) -> Tensor:
        """Attend from each token to its request's context.

        hidden   [T, H] device, or [T, in_features]
        returns  [T, H] device

        Stream: the current one. Sync: the backend's. Allocates: q, k and v, rotated and not, and
        the result. Keeps: nothing, but keys and values in the KV cache. Capture: the backend's.
        """
        num_queries, num_keys = self.layer.tp_q_head_num, self.layer.tp_k_head_num
        shape = (hidden.shape[0], num_queries + 2 * num_keys, self.layer.qk_head_dim)
        heads = self._qkv_proj(hidden).view(shape)
        turned, v = torch.split(heads, [num_queries + num_keys, num_keys], dim=1)
        q, k = torch.split(rotation.rotate(turned), [num_queries, num_keys], dim=1)
        attended = context.attend(self.layer, q.flatten(1), k.flatten(1), v.flatten(1))
        return self._o_proj(attended)

    def named_weights(self) -> NamedWeights:
        """List the projections' weights."""
        yield from self._qkv_proj.named_weights()
        yield from self._o_proj.named_weights()


class MLP:
    """Two maps of each token, one the other's gate, and a third one back.

    Args:
        config: the model's shape.
        device: where the weights are.
        dtype: of weights, inputs and outputs.
    """

    def __init__(self, config: LlamaConfig, device: torch.device, dtype: torch.dtype) -> None:
        size, has_bias = config.intermediate_size, config.mlp_bias
        self._gate_up_proj = Linear(
            config.hidden_size,
            {"gate_proj": size, "up_proj": size},
            has_bias=has_bias,
            device=device,
            dtype=dtype,
        )
        self._down_proj = Linear(
            size, {"down_proj": config.hidden_size}, has_bias=has_bias, device=device, dtype=dtype
        )

    def __call__(self, hidden: Tensor) -> Tensor:
        """Map each token by itself.

        hidden   [T, H] device
        returns  [T, H] device

        Stream: the current one. Sync: none. Allocates: the result and what lies between.
        Keeps: nothing. Capture: yes.
        """
        gate, up = self._gate_up_proj(hidden).chunk(2, dim=-1)
        return self._down_proj(silu(gate) * up)

    def named_weights(self) -> NamedWeights:
        """List the projections' weights."""
        yield from self._gate_up_proj.named_weights()
        yield from self._down_proj.named_weights()


class DecoderLayer:
    """Attention and an MLP, each of the normalised tokens, and each added to them.

    Args:
        config: the model's shape.
        layer_id: the layer's place in the KV cache.
        device: where the weights are.
        dtype: of weights, inputs and outputs.
    """

    def __init__(
        self, config: LlamaConfig, layer_id: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        size, eps = config.hidden_size, config.rms_norm_eps
        self.attention = Attention(config, layer_id, device, dtype)
        self.mlp = MLP(config, device, dtype)
        self._input_norm = RMSNorm(size, eps, device, dtype)
        self._mlp_norm = RMSNorm(size, eps, device, dtype)

    def __call__(self, hidden: Tensor, rotation: Rotation, context: AttentionContext) -> Tensor:
        """Compute this layer.

        hidden   [T, H] device
        returns  [T, H] device

        Stream: the current one. Sync: the backend's. Allocates: the result and what lies between.
        Keeps: nothing, but keys and values in the KV cache. Capture: the backend's.
        """
        hidden = hidden + self.attention(self._input_norm(hidden), rotation, context)
        return hidden + self.mlp(self._mlp_norm(hidden))

    def named_weights(self) -> NamedWeights:
        """List the weights of both parts and their norms."""
        yield from named("self_attn", self.attention)
        yield from named("mlp", self.mlp)
        yield from named("input_layernorm", self._input_norm)
        yield from named("post_attention_layernorm", self._mlp_norm)
