"""A draft head as EAGLE has it: it continues from a target's hidden states and its tokens.

It takes the state of one token and the embedding of the next, and has no norm before its first
layer, nor one after its last. EAGLE 1 and 2 have such heads; they differ in how they are asked.

Shapes: B rows to score and T tokens in the batch, H features of a token, V tokens in the
vocabulary.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import StrictBool
from torch import Tensor

from backend_caps.runtime.model.config import LlamaConfig
from backend_caps.runtime.model.layers import MLP, Attention, AttentionContext, DecoderLayer
from backend_caps.runtime.model.linear import (
    Embedding,
    Linear,
    LMHead,
    NamedWeights,
    RMSNorm,
    named,
)
from backend_caps.runtime.model.rotary import RotaryTable, Rotation
from backend_caps.runtime.model.supported import ARCHITECTURES


class EagleConfig(LlamaConfig):
    """What an EAGLE head is made of: the shape of its layers, and one key of its own."""

    architectures: ClassVar[tuple[str, ...]] = (*ARCHITECTURES, "LlamaForCausalLMEagle")
    """What a config.json may call a head: published ones are named as their targets, or so."""

    bias: StrictBool | None = None
    """What joins token and state has a bias; None where nobody said, and its weights tell."""


class EagleHead:
    """A draft head with the weights that `load_eagle` gives it; it has arbitrary ones before.

    Args:
        config: the shape of its layers.
        embedding: the target's, which it shares.
        lm_head: the target's, which it shares.
        device: where it is.
        dtype: what it computes in, the target's.
        has_bias: what joins token and state has a bias.
        num_positions: the positions that it can tell apart; by default those of the config.
    """

    def __init__(
        self,
        config: LlamaConfig,
        embedding: Embedding,
        lm_head: LMHead,
        device: torch.device,
        dtype: torch.dtype,
        *,
        has_bias: bool = False,
        num_positions: int | None = None,
    ) -> None:
        self.config = config
        self.embedding = embedding
        self.lm_head = lm_head
        self.device = device
        self.dtype = dtype
        self.num_positions = (
            config.max_position_embeddings if num_positions is None else num_positions
        )
        """A position at or above it cannot be computed."""
        size = config.hidden_size
        self.fc = Linear(2 * size, {"fc": size}, has_bias=has_bias, device=device, dtype=dtype)
        self.rotary = RotaryTable(config.rope, config.head_dim, self.num_positions, device, dtype)
        self.layers: tuple[UnnormedLayer | DecoderLayer, ...] = (
            UnnormedLayer(config, device, dtype),
            *(
                DecoderLayer(config, layer_id, device, dtype)
                for layer_id in range(1, config.num_hidden_layers)
            ),
        )

    @property
    def reads_hidden(self) -> bool:
        """True: it continues from hidden states."""
        return True

    @property
    def num_features(self) -> int:
        """H: it reads the target's last hidden state."""
        return self.config.hidden_size

    @property
    def vocab_size(self) -> int:
        """The target's."""
        return self.config.vocab_size

    def fuse(self, features: Tensor) -> Tensor:
        """Return the target's states [T, H] as they are: `fc` takes them together with tokens."""
        return features

    def hidden_states(
        self, input_ids: Tensor, positions: Tensor, hidden: Tensor | None, context: AttentionContext
    ) -> Tensor:
        """Compute what the target's hidden state of each token is likely to be.

        input_ids  [T] int64, device  0 <= id < V
        positions  [T] int64, device  0 <= position < num_positions
        hidden     [T, H] device      of the token before each: the target's, normalised, or what
                                      this function returned of it
        returns    [T, H] device

        Stream: the current one. Sync: the backend's. Allocates: the result and what lies between.
        Keeps: nothing, but keys and values in the KV cache. Capture: the backend's.
        """
        assert hidden is not None, "an EAGLE head continues from hidden states, and got none"
        rotation = self.rotary.look_up(positions)
        joined = self.fc(torch.cat([self.embedding(input_ids), hidden], dim=-1))
        for layer in self.layers:
            joined = layer(joined, rotation, context)
        return joined

    def logits(self, hidden: Tensor) -> Tensor:
        """Score the vocabulary with the target's LM head.

        hidden   [B, H] device
        returns  [B, V] float32, device

        Stream: the current one. Sync: none. Allocates: the result, in both dtypes.
        Keeps: nothing. Capture: yes.
        """
        return self.lm_head(hidden)

    def target_ids(self, draft_ids: Tensor) -> Tensor:
        """Return the ids as they are: the vocabulary is the target's."""
        return draft_ids

    def named_weights(self) -> NamedWeights:
        """List the head's own weights by their names in a checkpoint, none of the target's."""
        yield from self.fc.named_weights()
        for number, layer in enumerate(self.layers):
            yield from named(f"layers.{number}", layer)


class UnnormedLayer:
    """A head's first layer: as any other, but its attention reads the tokens as they are.

    Args:
        config: the head's shape.
        device: where the weights are.
        dtype: of weights, inputs and outputs.
    """

    def __init__(self, config: LlamaConfig, device: torch.device, dtype: torch.dtype) -> None:
        self.attention = Attention(config, 0, device, dtype)
        self.mlp = MLP(config, device, dtype)
        self._mlp_norm = RMSNorm(config.hidden_size, config.rms_norm_eps, device, dtype)

    def __call__(self, hidden: Tensor, rotation: Rotation, context: AttentionContext) -> Tensor:
        """Compute this layer.

        hidden   [T, H] device
        returns  [T, H] device

        Stream: the current one. Sync: the backend's. Allocates: the result and what lies between.
        Keeps: nothing, but keys and values in the KV cache. Capture: the backend's.
        """
        hidden = hidden + self.attention(hidden, rotation, context)
        return hidden + self.mlp(self._mlp_norm(hidden))

    def named_weights(self) -> NamedWeights:
        """List the weights of both parts, and of the one norm."""
        yield from named("self_attn", self.attention)
        yield from named("mlp", self.mlp)
        yield from named("post_attention_layernorm", self._mlp_norm)
