"""The parts of a Llama-architecture decoder: weights, and the layers that are made of them.

Weights are plain tensors, each known by the names of its parts in a checkpoint: nothing here is
trained, and a device may have tensors of its own class.

Shapes: T tokens in the batch, H features of a token, I features in, O features out, V tokens in the
vocabulary, Hq query heads, Hk key and value heads, D their size.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import embedding, linear, rms_norm, silu

from backend_caps.runtime.model.config import LlamaConfig
from backend_caps.runtime.model.rotary import RotaryTable, Rotation

NamedWeights = Iterator[tuple[str, Tensor]]
"""Names in a checkpoint, and the memory that each one's numbers belong in."""
WeightTree: TypeAlias = "Mapping[str, Tensor | WeightTree]"
"""Weights by their names in a checkpoint, of which a dot parts the levels."""


class Weighted:
    """What has weights that a checkpoint fills."""

    weights: WeightTree
    """Those of its own: none that it shares with another."""

    def named_weights(self) -> NamedWeights:
        """List the weights by their names in a checkpoint, below this one's own."""
        return _flat(self.weights, "")


def _flat(tree: WeightTree, prefix: str) -> NamedWeights:
    for name, own in tree.items():
        if isinstance(own, Tensor):
            yield prefix + name, own
        else:
            yield from _flat(own, f"{prefix}{name}.")


@dataclass(frozen=True, slots=True)
class TensorOptions:
    """Where a model's weights are, and what it computes in."""

    device: torch.device
    dtype: torch.dtype

    @property
    def hollow(self) -> TensorOptions:
        """The same on the meta device, where a model has names and shapes, and takes no memory."""
        return TensorOptions(torch.device("meta"), self.dtype)

    def empty(self, *shape: int) -> Tensor:
        """Make memory for a weight."""
        return torch.empty(shape, device=self.device, dtype=self.dtype)


class Linear(Weighted):
    """A linear map, or several of the same input in one: a launch costs more than its numbers.

    Args:
        in_features: I.
        parts: the maps' names in a checkpoint, with their features out; O in all.
        has_bias: each of them has one.
        options: of weights, inputs and outputs.
    """

    def __init__(
        self, in_features: int, parts: Mapping[str, int], options: TensorOptions, *, has_bias: bool
    ) -> None:
        sizes = list(parts.values())
        self.weight = options.empty(sum(sizes), in_features)
        """[O, I] device."""
        self.bias = options.empty(sum(sizes)) if has_bias else None
        """[O] device."""
        stored = {"weight": torch.split(self.weight, sizes)}
        if self.bias is not None:
            stored["bias"] = torch.split(self.bias, sizes)
        self.weights = {
            part: {name: shares[place] for name, shares in stored.items()}
            for place, part in enumerate(parts)
        }

    def __call__(self, inputs: Tensor) -> Tensor:
        """Map features, of all parts side by side.

        inputs   [T, I] device
        returns  [T, O] device

        Stream: the current one. Sync: none. Allocates: the result. Keeps: nothing. Capture: yes.
        """
        return linear(inputs, self.weight, self.bias)


class RMSNorm(Weighted):
    """Scale each token's features to a root mean square of 1, then by a weight.

    Args:
        size: H.
        eps: what keeps it from dividing by zero.
        options: of weight, inputs and outputs; the mean is taken in float32.
    """

    def __init__(self, size: int, eps: float, options: TensorOptions) -> None:
        self.weight = options.empty(size)
        """[H] device."""
        self.weights = {"weight": self.weight}
        self._eps = eps

    def __call__(self, hidden: Tensor) -> Tensor:
        """Normalise tokens.

        hidden   [T, H] device
        returns  [T, H] device

        Stream: the current one. Sync: none. Allocates: the result, and as much in float32.
        Keeps: nothing. Capture: yes.
        """
        return rms_norm(hidden, self.weight.shape, self.weight, self._eps)


class Embedding(Weighted):
    """The features that each token of the vocabulary starts with.

    Args:
        vocab_size: V.
        size: H.
        options: of weight and outputs.
    """

    def __init__(self, vocab_size: int, size: int, options: TensorOptions) -> None:
        self.weight = options.empty(vocab_size, size)
        """[V, H] device."""
        self.weights = {"weight": self.weight}

    def __call__(self, input_ids: Tensor) -> Tensor:
        """Look tokens up.

        input_ids  [T] int64, device  0 <= id < V
        returns    [T, H] device

        Stream: the current one. Sync: none. Allocates: the result. Keeps: nothing. Capture: yes.
        """
        return embedding(input_ids, self.weight)


class LMHead(Weighted):
    """The score of each token of the vocabulary, of what the last layer made.

    Args:
        weight: [V, H] device; the embedding's own where the two are tied.
    """

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight
        self.weights = {"weight": weight}

    def __call__(self, hidden: Tensor) -> Tensor:
        """Score the vocabulary.

        hidden   [T, H] device
        returns  [T, V] float32, device

        Stream: the current one. Sync: none. Allocates: the result, in both dtypes.
        Keeps: nothing. Capture: yes.
        """
        return linear(hidden, self.weight).to(torch.float32)


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
    """The forward that a layer is a part of, as the layer sees it."""

    def attend(self, layer: AttentionLayer, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend in one layer: [T, Hq * D], [T, Hk * D], [T, Hk * D] to [T, Hq * D]."""


class Attention(Weighted):
    """Queries, keys and values of each token, and what a backend makes of them.

    Args:
        config: the model's shape.
        layer_id: the layer's place in the KV cache.
        options: of weights, inputs and outputs.
        in_features: features of a token that queries, keys and values are made of; None is H.
    """

    def __init__(
        self,
        config: LlamaConfig,
        layer_id: int,
        options: TensorOptions,
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
            options,
            has_bias=has_bias,
        )
        out = {"o_proj": config.hidden_size}
        self._o_proj = Linear(num_queries * size, out, options, has_bias=has_bias)
        self.weights = {**self._qkv_proj.weights, **self._o_proj.weights}

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


class MLP(Weighted):
    """Two maps of each token, one the other's gate, and a third one back.

    Args:
        config: the model's shape.
        options: of weights, inputs and outputs.
    """

    def __init__(self, config: LlamaConfig, options: TensorOptions) -> None:
        size, inner, has_bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        both = {"gate_proj": inner, "up_proj": inner}
        self._gate_up_proj = Linear(size, both, options, has_bias=has_bias)
        self._down_proj = Linear(inner, {"down_proj": size}, options, has_bias=has_bias)
        self.weights = {**self._gate_up_proj.weights, **self._down_proj.weights}

    def __call__(self, hidden: Tensor) -> Tensor:
        """Map each token by itself.

        hidden   [T, H] device
        returns  [T, H] device

        Stream: the current one. Sync: none. Allocates: the result and what lies between.
        Keeps: nothing. Capture: yes.
        """
        gate, up = self._gate_up_proj(hidden).chunk(2, dim=-1)
        return self._down_proj(silu(gate) * up)


_INPUT_NORM = "input_layernorm"


class DecoderLayer(Weighted):
    """Attention and an MLP, each of the normalised tokens, and each added to them.

    Args:
        config: the model's shape.
        layer_id: the layer's place in the KV cache.
        options: of weights, inputs and outputs.
        norms: the norms before the attention, by their names in a checkpoint; without one, it reads
            tokens as they are.
        in_features: features of a token that the attention reads; None is H.
    """

    def __init__(
        self,
        config: LlamaConfig,
        layer_id: int,
        options: TensorOptions,
        *,
        norms: Collection[str] = (_INPUT_NORM,),
        in_features: int | None = None,
    ) -> None:
        size, eps = config.hidden_size, config.rms_norm_eps
        self.attention = Attention(config, layer_id, options, in_features=in_features)
        self.mlp = MLP(config, options)
        self.norms = {name: RMSNorm(size, eps, options) for name in norms}
        self._mlp_norm = RMSNorm(size, eps, options)
        self.weights = {
            "self_attn": self.attention.weights,
            "mlp": self.mlp.weights,
            **{name: norm.weights for name, norm in self.norms.items()},
            "post_attention_layernorm": self._mlp_norm.weights,
        }

    def __call__(self, hidden: Tensor, rotation: Rotation, context: AttentionContext) -> Tensor:
        """Compute this layer.

        hidden   [T, H] device
        returns  [T, H] device

        Stream: the current one. Sync: the backend's. Allocates: the result and what lies between.
        Keeps: nothing, but keys and values in the KV cache. Capture: the backend's.
        """
        norm = self.norms.get(_INPUT_NORM)
        read = hidden if norm is None else norm(hidden)
        return self.added(hidden, read, rotation, context)

    def added(
        self, hidden: Tensor, read: Tensor, rotation: Rotation, context: AttentionContext
    ) -> Tensor:
        """Add attention over what was made of the tokens for it, then the MLP.

        hidden   [T, H] device
        read     [T, H] device, or [T, in_features]
        returns  [T, H] device

        Stream: the current one. Sync: the backend's. Allocates: the result and what lies between.
        Keeps: nothing, but keys and values in the KV cache. Capture: the backend's.
        """
        hidden = hidden + self.attention(read, rotation, context)
        return hidden + self.mlp(self._mlp_norm(hidden))


class Decoder(Weighted):
    """What a decoder and a draft head have alike: a shape, and a table of angles.

    Args:
        config: its shape.
        options: of weights, inputs and outputs.
        num_positions: the positions that it can tell apart; by default those of the config.
    """

    def __init__(
        self, config: LlamaConfig, options: TensorOptions, num_positions: int | None = None
    ) -> None:
        self.config = config
        self.options, self.device, self.dtype = options, options.device, options.dtype
        if num_positions is None:
            num_positions = config.max_position_embeddings
        self.num_positions = num_positions
        """A position at or above it cannot be computed."""
        self.rotary = RotaryTable(
            config.rope, config.head_dim, num_positions, options.device, options.dtype
        )
