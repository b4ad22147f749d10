"""Recurrences of layers that keep a state in place of a KV cache, token by token.

A state is a few tensors of one request in one layer. Each token replaces it, and gives an output.

Shapes: T tokens, H heads, D the size of a head's keys, Dv that of its values, C channels, W tokens
of a convolution, Hk heads of queries and keys.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor, nn

State: TypeAlias = Mapping[str, Tensor]
"""What a layer keeps of a request, by the tensor's name: `temporal`, `conv`."""
Tokens: TypeAlias = Mapping[str, Tensor]
"""What tokens bring to a layer, by the name of each part: [T, ...] each."""

LAYER_IDS = (0, 2)
"""The layers that keep states, of three: the one between them attends to a KV cache."""
NUM_LAYERS = 3
_WIDTH = 4
"""W."""
_EPSILON = 1e-6
"""What keeps a norm from 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSizes:
    """The shapes of one request's state in one layer."""

    temporal: tuple[int, int, int]
    """Heads, and the two sizes of a head's state."""
    conv: tuple[int, int] = (1, 1)
    """Channels, and the tokens of a convolution that it keeps."""


class Recurrence(ABC):
    """What the layers of a class of linear attention compute."""

    num_heads: int
    """H, of outputs."""
    value_size: int
    """Dv."""
    dtypes: Sequence[str]
    """Of what tokens bring, by turns."""
    lengths: Sequence[int] = (1, 2, 5, 31, 32, 33, 64, 70)
    """Tokens of a prompt or chunk: few, and around the ends of kernels' blocks."""
    shortest_prompt: int = 1
    """Tokens that a new request brings at least."""
    mixes_verifies: bool = False
    """Whether an engine has prompts beside verifies in a batch."""

    @property
    @abstractmethod
    def sizes(self) -> StateSizes:
        """The shapes of a state."""

    @abstractmethod
    def draw(self, count: int, dtype: torch.dtype, generator: torch.Generator) -> Tokens:
        """Draw what `count` tokens bring to one layer: [count, ...] each, host."""

    @abstractmethod
    def step(self, layer_id: int, state: State, token: Tokens) -> tuple[State, Tensor]:
        """Bring one token into a state, by the definition.

        state    float64, host  before the token
        token    one row of what tokens bring, float64, host
        returns  the state behind it, and its output [H, Dv]; float64, host
        """


class Lightning(Recurrence):
    """Lightning attention: keys and values add to a state that each token decays.

    A head decays by `exp(-slope)` at each token. Slopes are those of ALiBi, less in later layers.
    """

    num_heads, head_size, value_size = 2, 128, 128
    dtypes: Sequence[str] = ("float32", "bfloat16")

    @property
    def sizes(self) -> StateSizes:
        """A matrix of each head."""
        return StateSizes(temporal=(self.num_heads, self.head_size, self.head_size))

    def draw(self, count: int, dtype: torch.dtype, generator: torch.Generator) -> Tokens:
        """Draw queries, keys and values in one tensor, as a model's projection gives them.

        returns  `qkv` [count, 3 * H * D], host
        """
        drawn = torch.randn(count, 3, self.num_heads * self.head_size, generator=generator)
        drawn[:, 1] /= 4  # so that outputs are about as large as those of attention
        return {"qkv": drawn.flatten(1).to(dtype)}

    def step(self, layer_id: int, state: State, token: Tokens) -> tuple[State, Tensor]:
        """Decay the state, add the token's key and value, and read by its query."""
        q, k, v = token["qkv"].view(3, self.num_heads, self.head_size)
        return self.bring(layer_id, state, q * self.head_size**-0.5, k, v)

    def bring(
        self, layer_id: int, state: State, q: Tensor, k: Tensor, v: Tensor
    ) -> tuple[State, Tensor]:
        """Bring a token's scaled query, its key and its value into a state: [H, D] float64 each."""
        decays = torch.exp(-self.slopes(layer_id))[:, None, None]
        temporal = state["temporal"] * decays + k[:, :, None] * v[:, None, :]
        return {"temporal": temporal}, torch.einsum("hd,hde->he", q, temporal)

    def slopes(self, layer_id: int) -> Tensor:
        """Return the slopes of a layer: [H] float64, host."""
        exponents = torch.arange(1, self.num_heads + 1, dtype=torch.float64) * 8 / self.num_heads
        return 2**-exponents * (1 - layer_id / (NUM_LAYERS - 1) + 1e-5)


class GatedDelta(Recurrence):
    """The gated delta rule: a head's state forgets, and replaces what its key finds by the value.

    Before it, a convolution over a few tokens. Gates are `exp(-exp(A_log) * softplus(a + dt_bias))`
    and `sigmoid(b)`. Queries and keys have norm 1.
    """

    num_key_heads, num_heads, head_size, value_size = 1, 2, 128, 128
    dtypes = ("bfloat16", "float16")

    @property
    def sizes(self) -> StateSizes:
        """A matrix of each head, by values and keys; and what the convolution looks back at."""
        temporal = self.num_heads, self.value_size, self.head_size
        return StateSizes(temporal=temporal, conv=(sum(self.parts), _WIDTH - 1))

    @property
    def parts(self) -> tuple[int, int, int]:
        """Channels of queries, keys and values."""
        keys = self.num_key_heads * self.head_size
        return keys, keys, self.num_heads * self.value_size

    def draw(self, count: int, dtype: torch.dtype, generator: torch.Generator) -> Tokens:
        """Draw `mixed_qkv` [count, C], and the gates `a` and `b` [count, H]; host."""
        sizes = {"mixed_qkv": sum(self.parts), "a": self.num_heads, "b": self.num_heads}
        return {
            name: torch.randn(count, size, generator=generator).to(dtype)
            for name, size in sizes.items()
        }

    def weights(self, layer_id: int) -> Mapping[str, Tensor]:
        """Return a layer's weights, numbers that each dtype has: float32, host.

        conv_weights  [C, W]
        A_log         [H]
        dt_bias       [H]
        """
        generator = torch.Generator().manual_seed(layer_id)
        # An engine may make its layers with other defaults of torch.
        draw = partial(torch.randn, generator=generator, dtype=torch.float32, device="cpu")
        drawn, gates = draw(sum(self.parts), _WIDTH), draw(2, self.num_heads)
        a_log, bias = (gates * 8).round() / 8
        return {"conv_weights": (drawn * 4).round() / 8, "A_log": a_log, "dt_bias": bias}

    def step(self, layer_id: int, state: State, token: Tokens) -> tuple[State, Tensor]:
        """Convolve, forget, correct what the key finds, and read by the query."""
        weights = {name: own.double() for name, own in self.weights(layer_id).items()}
        window = torch.cat([state["conv"], token["mixed_qkv"][:, None]], dim=1)
        mixed = nn.functional.silu((window * weights["conv_weights"]).sum(1))
        q, k, v = torch.split(mixed, [*self.parts])
        group = self.num_heads // self.num_key_heads
        query, key = (_normed(own.view(-1, self.head_size)) for own in (q, k))
        query, key = (own.repeat_interleave(group, dim=0) for own in (query, key))
        softened = nn.functional.softplus(token["a"] + weights["dt_bias"])
        kept = torch.exp(-weights["A_log"].exp() * softened)
        temporal = state["temporal"] * kept[:, None, None]
        missing = v.view(self.num_heads, -1) - torch.einsum("hvk,hk->hv", temporal, key)
        added = token["b"].sigmoid()[:, None] * missing
        temporal = temporal + added[:, :, None] * key[:, None, :]
        output = torch.einsum("hvk,hk->hv", temporal, query * self.head_size**-0.5)
        return {"temporal": temporal, "conv": window[:, 1:]}, output


def _normed(heads: Tensor) -> Tensor:
    """Divide each of [Hk, D] by its norm."""
    return heads * torch.rsqrt(heads.square().sum(-1, keepdim=True) + _EPSILON)
