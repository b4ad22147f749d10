"""A model's weights, each known by the names of its parts in a checkpoint.

They are plain tensors: nothing here is trained, and a device may have tensors of its own class.

Shapes: T tokens, I features in, O features out, V tokens in the vocabulary, H features of a token.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import embedding, linear, rms_norm

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
