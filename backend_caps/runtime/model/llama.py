"""A Llama-architecture decoder: embedding, layers, norm and LM head.

Shapes: B requests and T tokens in the batch, H features of a token, V tokens in the vocabulary, A
layers whose inputs an EAGLE3 head reads.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Self

import torch
from torch import Tensor

from backend_caps.runtime.model.config import LlamaConfig
from backend_caps.runtime.model.layers import AttentionContext, DecoderLayer
from backend_caps.runtime.model.linear import Embedding, LMHead, NamedWeights, RMSNorm, named
from backend_caps.runtime.model.rotary import RotaryTable


class AuxStates:
    """Collect the inputs of some layers during one forward, for an EAGLE3 head.

    Args:
        layer_ids: the layers, [A]; the number of layers stands for the output of the last one.
    """

    def __init__(self, layer_ids: Collection[int]) -> None:
        self._layer_ids = layer_ids
        self.kept: list[Tensor] = []
        """[T, H] device each."""

    @classmethod
    def of_parts(cls, parts: Sequence[Self]) -> Self:
        """Join what was collected of parts of a batch, in the order of their tokens.

        Stream: the current one. Sync: none. Allocates: the result. Keeps: nothing. Capture: yes.
        """
        joined = cls(())
        joined.kept = [
            torch.cat(states) for states in zip(*(own.kept for own in parts), strict=True)
        ]
        return joined

    def before(self, layer_id: int, hidden: Tensor) -> None:
        """Keep the input [T, H] of a layer if it is one of those to collect.

        Layers come in ascending order, so states are joined in that order, as in SGLang and vLLM.
        """
        if layer_id in self._layer_ids:
            self.kept.append(hidden)

    def beside(self, states: Tensor) -> Tensor:
        """Join what was collected to the right of [T, H] states: [T, (1 + A) * H], or as it is.

        Stream: the current one. Sync: none. Allocates: the result. Keeps: nothing. Capture: yes.
        """
        return torch.cat([states, *self.kept], dim=-1) if self.kept else states


class LlamaModel:
    """A decoder with the weights that `load_llama` gives it; it has arbitrary ones before.

    Args:
        config: its shape.
        device: where it is.
        dtype: what it computes in.
        num_positions: the positions that it can tell apart; by default those of the config.
    """

    def __init__(
        self,
        config: LlamaConfig,
        device: torch.device,
        dtype: torch.dtype,
        num_positions: int | None = None,
    ) -> None:
        self.config = config
        self.device = device
        self.dtype = dtype
        self.num_positions = (
            config.max_position_embeddings if num_positions is None else num_positions
        )
        """A position at or above it cannot be computed."""
        self.aux_layer_ids: tuple[int, ...] = ()
        """Layers whose inputs `hidden_states` returns beside its states, [A]. Set it before a
        forward is captured: a graph keeps what it was captured with."""
        size = config.hidden_size
        self.embedding = Embedding(config.vocab_size, size, device, dtype)
        self.rotary = RotaryTable(config.rope, config.head_dim, self.num_positions, device, dtype)
        self.layers = tuple(
            DecoderLayer(config, layer_id, device, dtype)
            for layer_id in range(config.num_hidden_layers)
        )
        self.norm = RMSNorm(size, config.rms_norm_eps, device, dtype)
        self.lm_head = LMHead(
            self.embedding.weight
            if config.tie_word_embeddings
            else torch.empty(config.vocab_size, size, device=device, dtype=dtype)
        )

    def __call__(
        self,
        input_ids: Tensor,
        positions: Tensor,
        context: AttentionContext,
        last_token_indices: Tensor | None = None,
    ) -> Tensor:
        """Score what may come after each request's last token, or after every token.

        input_ids           [T] int64, device  0 <= id < V
        positions           [T] int64, device  0 <= position < num_positions
        last_token_indices  [B] int64, device  places among the T; None: all of them, B = T
        returns             [B, V] float32, device

        Stream: the current one. Sync: the backend's. Allocates: the result and what lies between.
        Keeps: nothing, but keys and values in the KV cache. Capture: the backend's.
        """
        hidden = self.hidden_states(input_ids, positions, context)
        if last_token_indices is not None:
            hidden = hidden.index_select(0, last_token_indices)
        return self.logits(hidden)

    def hidden_states(
        self, input_ids: Tensor, positions: Tensor, context: AttentionContext
    ) -> Tensor:
        """Compute all but the LM head: what it scores, and what a draft head continues from.

        input_ids  [T] int64, device  0 <= id < V
        positions  [T] int64, device  0 <= position < num_positions
        returns    [T, (1 + A) * H] device  the normed states, then the inputs of `aux_layer_ids`

        Stream: the current one. Sync: the backend's. Allocates: the result and what lies between.
        Keeps: nothing, but keys and values in the KV cache. Capture: the backend's.
        """
        rotation = self.rotary.look_up(positions)
        hidden, aux = self.embedding(input_ids), AuxStates(self.aux_layer_ids)
        for layer_id, layer in enumerate(self.layers):
            aux.before(layer_id, hidden)
            hidden = layer(hidden, rotation, context)
        aux.before(len(self.layers), hidden)
        return aux.beside(self.norm(hidden))

    def logits(self, states: Tensor) -> Tensor:
        """Score the vocabulary.

        states   [B, (1 + A) * H] device  rows of `hidden_states`; only the first H are read
        returns  [B, V] float32, device

        Stream: the current one. Sync: none. Allocates: the result, in both dtypes.
        Keeps: nothing. Capture: yes.
        """
        return self.lm_head(states[:, : self.config.hidden_size])

    def named_weights(self) -> NamedWeights:
        """List the weights by their names in a checkpoint; a tied LM head has none there."""
        yield from named("model.embed_tokens", self.embedding)
        for number, layer in enumerate(self.layers):
            yield from named(f"model.layers.{number}", layer)
        yield from named("model.norm", self.norm)
        if not self.config.tie_word_embeddings:
            yield from named("lm_head", self.lm_head)
