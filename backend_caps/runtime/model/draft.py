"""Models that guess what a target model will say.

Shapes: B rows to score and T tokens in the batch, H features of the target's tokens, Hd of the
draft's, F features that a head reads of the target, V tokens in the vocabulary, Vd tokens that the
draft scores.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from backend_caps.runtime.model.config import LlamaConfig
from backend_caps.runtime.model.layers import AttentionContext
from backend_caps.runtime.model.linear import NamedWeights
from backend_caps.runtime.model.llama import LlamaModel


class DraftModel(Protocol):
    """What a speculative step asks of the model that drafts."""

    @property
    def config(self) -> LlamaConfig:
        """The shape of its layers, which its KV cache is made for."""

    @property
    def dtype(self) -> torch.dtype:
        """What it computes in."""

    @property
    def reads_hidden(self) -> bool:
        """Whether it continues from hidden states: the target's, then its own."""

    @property
    def num_features(self) -> int:
        """F; 0 if `reads_hidden` is False."""

    @property
    def vocab_size(self) -> int:
        """Vd."""

    def fuse(self, features: Tensor) -> Tensor:
        """Make of the target's hidden states what `hidden_states` continues from.

        features  [T, F] device
        returns   [T, Hd] device

        Stream: the current one. Sync: none. Allocates: the result. Keeps: nothing. Capture: yes.
        """

    def hidden_states(
        self, input_ids: Tensor, positions: Tensor, hidden: Tensor | None, context: AttentionContext
    ) -> Tensor:
        """Compute what `logits` scores, and what a next draft may continue from.

        input_ids  [T] int64, device  0 <= id < V
        positions  [T] int64, device  0 <= position < num_positions
        hidden     [T, Hd] device     of the token before each: what `fuse` or this function
                                      returned; None if `reads_hidden` is False
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

    def target_ids(self, draft_ids: Tensor) -> Tensor:
        """Map places in `logits` to token ids of the target.

        draft_ids  [...] int64, device  0 <= id < Vd
        returns    [...] int64, device  0 <= id < V

        Stream: the current one. Sync: none. Allocates: the result. Keeps: nothing. Capture: yes.
        """

    def named_weights(self) -> NamedWeights:
        """List its own weights by their names in a checkpoint, none that it shares."""


class StandaloneDraft:
    """A small model with the target's vocabulary, which reads nothing of the target.

    Args:
        model: the small one.
    """

    def __init__(self, model: LlamaModel) -> None:
        self.model = model

    @property
    def config(self) -> LlamaConfig:
        """The small model's shape."""
        return self.model.config

    @property
    def num_positions(self) -> int:
        """A position at or above it cannot be computed."""
        return self.model.num_positions

    @property
    def dtype(self) -> torch.dtype:
        """What it computes in."""
        return self.model.dtype

    @property
    def reads_hidden(self) -> bool:
        """False: tokens are all that it reads."""
        return False

    @property
    def num_features(self) -> int:
        """0: it reads nothing of the target."""
        return 0

    @property
    def vocab_size(self) -> int:
        """The target's."""
        return self.model.config.vocab_size

    def fuse(self, features: Tensor) -> Tensor:
        """Return the features as they are; nothing reads them."""
        return features

    def hidden_states(
        self, input_ids: Tensor, positions: Tensor, hidden: Tensor | None, context: AttentionContext
    ) -> Tensor:
        """Compute all but the LM head, of tokens alone.

        input_ids  [T] int64, device  0 <= id < V
        positions  [T] int64, device  0 <= position < num_positions
        hidden     anything           it is not read
        returns    [T, Hd] device

        Stream: the current one. Sync: the backend's. Allocates: the result and what lies between.
        Keeps: nothing, but keys and values in the KV cache. Capture: the backend's.
        """
        del hidden
        return self.model.hidden_states(input_ids, positions, context)

    def logits(self, hidden: Tensor) -> Tensor:
        """Score the vocabulary with the small model's own LM head.

        hidden   [B, Hd] device
        returns  [B, V] float32, device

        Stream: the current one. Sync: none. Allocates: the result, in both dtypes.
        Keeps: nothing. Capture: yes.
        """
        return self.model.lm_head(hidden)

    def target_ids(self, draft_ids: Tensor) -> Tensor:
        """Return the ids as they are: the vocabulary is the target's."""
        return draft_ids

    def named_weights(self) -> NamedWeights:
        """List the small model's weights by their names in a checkpoint."""
        return self.model.named_weights()
