"""Models that draft for a target: a small model of its own, and the heads of EAGLE 1 and 2.

An EAGLE head takes the hidden state of one token and the embedding of the next, and has no norm
before its first layer, nor one after its last.

Shapes: B rows to score and T tokens in the batch, H features of the target's tokens, Hd of the
draft's, F features that a head reads of the target, V tokens in the vocabulary, Vd tokens that the
draft scores.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from pydantic import StrictBool
from torch import Tensor

from backend_caps.runtime.model.config import ARCHITECTURES, LlamaConfig
from backend_caps.runtime.model.layers import (
    AttentionContext,
    Decoder,
    DecoderLayer,
    Embedding,
    Linear,
    LMHead,
    TensorOptions,
    Weighted,
)
from backend_caps.runtime.model.llama import LlamaModel


class DraftModel(Weighted, ABC):
    """The interface of a model that drafts.

    Defaults are those of a head with the target's vocabulary, which takes its states as they are.
    """

    config: LlamaConfig
    """The shape of its layers, which its KV cache is made for."""
    dtype: torch.dtype
    """What it computes in."""
    num_positions: int
    """A position at or above it cannot be computed."""
    lm_head: LMHead
    reads_hidden: ClassVar[bool] = True
    """Whether it continues from hidden states: the target's, then its own."""

    @property
    def num_features(self) -> int:
        """F: what it reads of a token of the target, if `reads_hidden`."""
        return self.config.hidden_size

    @property
    def vocab_size(self) -> int:
        """Vd."""
        return self.config.vocab_size

    def fuse(self, features: Tensor) -> Tensor:
        """Make of the target's hidden states what `hidden_states` continues from.

        features  [T, F] device
        returns   [T, Hd] device

        Stream: the current one. Sync: none. Allocates: the result. Keeps: nothing. Capture: yes.
        """
        return features

    @abstractmethod
    def hidden_states(
        self, input_ids: Tensor, positions: Tensor, hidden: Tensor | None, context: AttentionContext
    ) -> Tensor:
        """Compute what `logits` scores, and what a next draft may continue from.

        input_ids  [T] int64, device  0 <= id < V
        positions  [T] int64, device  0 <= position < num_positions
        hidden     [T, Hd] device     of the token before each: what `fuse` or this function
                                      returned; not read if `reads_hidden` is False
        returns    [T, Hd] device

        Stream: the current one. Sync: the backend's. Allocates: the result and what lies between.
        Keeps: nothing, but keys and values in the KV cache. Capture: the backend's.
        """

    def logits(self, hidden: Tensor) -> Tensor:
        """Score what may come after a token.

        hidden   [B, Hd] device
        returns  [B, Vd] float32, device

        Stream: the current one. Sync: none. Allocates: the result, in both dtypes.
        Keeps: nothing. Capture: yes.
        """
        return self.lm_head(hidden)

    def target_ids(self, draft_ids: Tensor) -> Tensor:
        """Map places in `logits` to token ids of the target.

        draft_ids  [...] int64, device  0 <= id < Vd
        returns    [...] int64, device  0 <= id < V

        Stream: the current one. Sync: none. Allocates: the result. Keeps: nothing. Capture: yes.
        """
        return draft_ids


class StandaloneDraft(DraftModel):
    """A small model with the target's vocabulary, which reads nothing of the target.

    Args:
        model: the small one.
    """

    reads_hidden = False

    def __init__(self, model: LlamaModel) -> None:
        self.model = model
        self.config, self.dtype, self.lm_head = model.config, model.dtype, model.lm_head
        self.num_positions, self.weights = model.num_positions, model.weights

    def hidden_states(
        self, input_ids: Tensor, positions: Tensor, hidden: Tensor | None, context: AttentionContext
    ) -> Tensor:
        """Compute all but the LM head, of tokens alone; `hidden` is not read."""
        del hidden
        return self.model.hidden_states(input_ids, positions, context)


class EagleConfig(LlamaConfig):
    """What an EAGLE head is made of: the shape of its layers, and one key of its own."""

    architectures: ClassVar[tuple[str, ...]] = (*ARCHITECTURES, "LlamaForCausalLMEagle")
    """What a config.json may call a head: published ones are named as their targets, or so."""

    bias: StrictBool | None = None
    """What joins token and state has a bias; None where the key is missing: the weights decide."""


class EagleHead(Decoder, DraftModel):
    """A draft head with the weights that `load_eagle` gives it; it has arbitrary ones before.

    Args:
        config: the shape of its layers.
        embedding: the target's, which it shares.
        lm_head: the target's, which it shares.
        options: where it is, and what it computes in: as the target's.
        has_bias: what joins token and state has a bias.
        num_positions: the positions that it can tell apart; by default those of the config.
    """

    def __init__(
        self,
        config: LlamaConfig,
        embedding: Embedding,
        lm_head: LMHead,
        options: TensorOptions,
        *,
        has_bias: bool = False,
        num_positions: int | None = None,
    ) -> None:
        super().__init__(config, options, num_positions)
        self.embedding = embedding
        self.lm_head = lm_head
        size, later = config.hidden_size, range(1, config.num_hidden_layers)
        self.fc = Linear(2 * size, {"fc": size}, options, has_bias=has_bias)
        self.layers = (
            DecoderLayer(config, 0, options, norms=()),
            *(DecoderLayer(config, layer_id, options) for layer_id in later),
        )
        layers = {f"{number}": layer.weights for number, layer in enumerate(self.layers)}
        self.weights = {**self.fc.weights, "layers": layers}

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
