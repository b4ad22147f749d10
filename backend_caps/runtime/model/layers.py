"""The parts of a Llama-architecture decoder: weights, and the layers that are made of them.

Weights are plain tensors, each known by the names of its parts in a checkpoint: nothing here is
trained, and a device may have tensors of its own class.

Shapes: T tokens in the batch, H features of a token, I features in, O features out, V tokens in the
vocabulary, Hq query heads, Hk key and value heads, D their size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import embedding, linear, rms_norm, silu

from backend_caps.runtime.model.config import LlamaConfig
from backend_caps.runtime.model.rotary import Rotation

NamedWeights = Iterator[tuple[str, Tensor]]
"""Names in a checkpoint, and the memory that each one's numbers belong in."""


class Weighted(Protocol):
    """What has weights that a checkpoint fills."""

    def named_weights(self) -> NamedWeights:
        """List the weights by their names in a checkpoint, below this one's own."""


def named(prefix: str, part: Weighted) -> NamedWeights:
    """List a part's weights by their names one level up."""
    return ((f"{prefix}.{name}", weight) for name, weight in part.named_weights())


class Linear:
    """A linear map, or several of the same input in one: a launch costs more than its numbers.

    Args:
        in_features: I.
        parts: the maps' names in a checkpoint, with their features out; O in all.
        has_bias: each of them has one.
        device: where the weights are.
        dtype: of weights, inputs and outputs.
    """

    def __init__(
        self,
        in_features: int,
        parts: Mapping[str, int],
        *,
        has_bias: bool,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        total = sum(parts.values())
        self._parts = parts
        self.weight = torch.empty(total, in_features, device=device, dtype=dtype)
        """[O, I] device."""
        self.bias = torch.empty(total, device=device, dtype=dtype) if has_bias else None
        """[O] device."""

    def __call__(self, inputs: Tensor) -> Tensor:
        """Map features, of all parts side by side.

        inputs   [T, I] device
        returns  [T, O] device

        Stream: the current one. Sync: none. Allocates: the result. Keeps: nothing. Capture: yes.
        """
        return linear(inputs, self.weight, self.bias)

    def named_weights(self) -> NamedWeights:
        """List each part's share of the weights."""
        start = 0
        for name, size in self._parts.items():
            yield f"{name}.weight", self.weight.narrow(0, start, size)
            if self.bias is not None:
                yield f"{name}.bias", self.bias.narrow(0, start, size)
            start += size


class RMSNorm:
    """Scale each token's features to a root mean square of 1, then by a weight.

    Args:
        size: H.
        eps: what keeps it from dividing by zero.
        device: where the weight is.
        dtype: of weight, inputs and outputs; the mean is taken in float32.
    """

    def __init__(self, size: int, eps: float, device: torch.device, dtype: torch.dtype) -> None:
        self.weight = torch.empty(size, device=device, dtype=dtype)
        """[H] device."""
        self._eps = eps

    def __call__(self, hidden: Tensor) -> Tensor:
        """Normalise tokens.

        hidden   [T, H] device
        returns  [T, H] device

        Stream: the current one. Sync: none. Allocates: the result, and as much in float32.
        Keeps: nothing. Capture: yes.
        """
        return rms_norm(hidden, self.weight.shape, self.weight, self._eps)

    def named_weights(self) -> NamedWeights:
        """List the weight."""
        yield "weight", self.weight


class Embedding:
    """The features that each token of the vocabulary starts with.

    Args:
        vocab_size: V.
        size: H.
        device: where the weight is.
        dtype: of weight and outputs.
    """

    def __init__(
        self, vocab_size: int, size: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        self.weight = torch.empty(vocab_size, size, device=device, dtype=dtype)
        """[V, H] device."""

    def __call__(self, input_ids: Tensor) -> Tensor:
        """Look tokens up.

        input_ids  [T] int64, device  0 <= id < V
        returns    [T, H] device

        Stream: the current one. Sync: none. Allocates: the result. Keeps: nothing. Capture: yes.
        """
        return embedding(input_ids, self.weight)

    def named_weights(self) -> NamedWeights:
        """List the weight."""
        yield "weight", self.weight


class LMHead:
    """The score of each token of the vocabulary, of what the last layer made.

    Args:
        weight: [V, H] device; the embedding's own where the two are tied.
    """

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight

    def __call__(self, hidden: Tensor) -> Tensor:
        """Score the vocabulary.

        hidden   [T, H] device
        returns  [T, V] float32, device

        Stream: the current one. Sync: none. Allocates: the result, in both dtypes.
        Keeps: nothing. Capture: yes.
        """
        return linear(hidden, self.weight).to(torch.float32)

    def named_weights(self) -> NamedWeights:
        """List the weight, whosever it is."""
        yield "weight", self.weight


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionLayer:
    """Say what a backend has to know of a model's layer; SGLang's names."""

    layer_id: int
    """Its place in the KV cache."""
    tp_q_head_num: int
    """Hq: query heads, on this rank."""
    tp_k_head_num: int
    """Hk: key and value heads, on this rank; it divides Hq."""
    qk_head_dim: int
    """D: features of a query and of a key."""
    v_head_dim: int
    """Dv: features of a value."""
    scaling: float
    """The factor on the scores."""


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
