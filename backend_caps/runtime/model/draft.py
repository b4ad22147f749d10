"""Models that guess what a target model will say.

Shapes: B rows to score and T tokens in the batch, H features of the target's tokens, Hd of the
draft's, V tokens in the vocabulary.
"""

from __future__ import annotations

from typing import Protocol

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
    def reads_hidden(self) -> bool:
        """Whether it continues from hidden states: the target's, then its own."""

    def hidden_states(
        self, input_ids: Tensor, positions: Tensor, hidden: Tensor | None, context: AttentionContext
    ) -> Tensor:
        """Compute what `logits` scores, and what a next draft may continue from.

        input_ids  [T] int64, device  0 <= id < V
        positions  [T] int64, device  0 <= position < num_positions
        hidden     [T, H] device      of the token before each; None if `reads_hidden` is False
        returns    [T, Hd] device     Hd = H if `reads_hidden`

        Stream: the current one. Sync: the backend's. Allocates: the result and what lies between.
        Keeps: nothing, but keys and values in the KV cache. Capture: the backend's.
        """

    def logits(self, hidden: Tensor) -> Tensor:
        """Score what may come after a token.

        hidden   [B, Hd] device
        returns  [B, V] float32, device

        Stream: the current one. Sync: none. Allocates: the result, in both dtypes.
        Keeps: nothing. Capture: yes.
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
    def reads_hidden(self) -> bool:
        """False: tokens are all that it reads."""
        return False

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

    def named_weights(self) -> NamedWeights:
        """List the small model's weights by their names in a checkpoint."""
        return self.model.named_weights()
