"""Recurrences of layers that keep a state in place of a KV cache, token by token.

A state is a few tensors of one request in one layer. Each token replaces it, and gives an output.

Shapes: T tokens, H heads, D the size of a head's keys, Dv that of its values, C channels, W tokens
of a convolution, Hk heads of queries and keys, G groups of heads.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
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

    temporal: tuple[int, int, int] = (1, 1, 1)
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
        draw = _weights_of(layer_id)
        drawn, gates = draw(sum(self.parts), _WIDTH), draw(2, self.num_heads)
        a_log, bias = (gates * 8).round() / 8
        return {"conv_weights": (drawn * 4).round() / 8, "A_log": a_log, "dt_bias": bias}

    def step(self, layer_id: int, state: State, token: Tokens) -> tuple[State, Tensor]:
        """Convolve, forget, correct what the key finds, and read by the query."""
        weights = {name: own.double() for name, own in self.weights(layer_id).items()}
        kept, convolved = _convolved(state, token["mixed_qkv"], weights["conv_weights"])
        mixed = nn.functional.silu(convolved)
        q, k, v = torch.split(mixed, [*self.parts])
        group = self.num_heads // self.num_key_heads
        query, key = (_normed(own.view(-1, self.head_size)) for own in (q, k))
        query, key = (own.repeat_interleave(group, dim=0) for own in (query, key))
        softened = nn.functional.softplus(token["a"] + weights["dt_bias"])
        decays = torch.exp(-weights["A_log"].exp() * softened)
        temporal = state["temporal"] * decays[:, None, None]
        missing = v.view(self.num_heads, -1) - torch.einsum("hvk,hk->hv", temporal, key)
        added = token["b"].sigmoid()[:, None] * missing
        temporal = temporal + added[:, :, None] * key[:, None, :]
        output = torch.einsum("hvk,hk->hv", temporal, query * self.head_size**-0.5)
        return {"temporal": temporal, "conv": kept}, output


class SelectiveState(Recurrence):
    """Mamba2's selective state space: what is kept of a state, and added, depends on the token.

    Before it, a convolution over a few tokens. A head's step is `softplus(dt + dt_bias)`; its state
    decays by `exp(-exp(A_log) * step)`, and gets the step's share of the token. The heads of a
    group share what writes and reads their states, `B` and `C`.
    """

    num_groups, num_heads, value_size, state_size = 2, 4, 64, 64
    dtypes = ("float32", "bfloat16")

    @property
    def sizes(self) -> StateSizes:
        """A matrix of each head, by values and states; and what the convolution looks back at."""
        temporal = self.num_heads, self.value_size, self.state_size
        return StateSizes(temporal=temporal, conv=(sum(self.parts), _WIDTH - 1))

    @property
    def parts(self) -> tuple[int, int, int]:
        """Channels of what is added, of `B` and of `C`."""
        shared = self.num_groups * self.state_size
        return self.num_heads * self.value_size, shared, shared

    def draw(self, count: int, dtype: torch.dtype, generator: torch.Generator) -> Tokens:
        """Draw `mixed_xbc` [count, C], and the steps `dt` [count, H]; host."""
        mixed = _bounded(count, sum(self.parts), generator)
        steps = torch.randn(count, self.num_heads, generator=generator)
        return {"mixed_xbc": mixed.to(dtype), "dt": steps.to(dtype)}

    def weights(self, layer_id: int) -> Mapping[str, Tensor]:
        """Return a layer's weights, numbers that each dtype has: float32, host.

        conv_weights  [C, W]
        conv_bias     [C]
        A_log         [H]
        dt_bias       [H]
        D             [H]  the share of a token that passes by the state
        """
        draw = _weights_of(layer_id)
        drawn = draw(sum(self.parts), _WIDTH + 1)
        channels, heads = ((own * 4).round() / 8 for own in (drawn, draw(3, self.num_heads)))
        conv_weights, conv_bias = torch.split(channels / 2, [_WIDTH, 1], dim=1)
        # A state keeps something of the chunk before, and does not grow.
        a_log, bias = heads[:2] - 1
        return {
            "conv_weights": conv_weights,
            "conv_bias": conv_bias.squeeze(1),
            "A_log": a_log,
            "dt_bias": bias,
            "D": heads[2],
        }

    def step(self, layer_id: int, state: State, token: Tokens) -> tuple[State, Tensor]:
        """Convolve, decay, add the step's share of the token, and read by its `C`."""
        weights = {name: own.double() for name, own in self.weights(layer_id).items()}
        kept, convolved = _convolved(state, token["mixed_xbc"], weights["conv_weights"])
        mixed = nn.functional.silu(convolved + weights["conv_bias"])
        added, writes, reads = torch.split(mixed, [*self.parts])
        added = added.view(self.num_heads, self.value_size)
        group = self.num_heads // self.num_groups
        writes, reads = (
            own.view(self.num_groups, -1).repeat_interleave(group, dim=0) for own in (writes, reads)
        )
        steps = nn.functional.softplus(token["dt"] + weights["dt_bias"])
        decays = torch.exp(-weights["A_log"].exp() * steps)
        shares = (steps[:, None] * added)[:, :, None] * writes[:, None, :]
        temporal = state["temporal"] * decays[:, None, None] + shares
        output = torch.einsum("hvn,hn->hv", temporal, reads) + weights["D"][:, None] * added
        return {"temporal": temporal, "conv": kept}, output


class ShortConvolution(Recurrence):
    """A gated convolution over a few tokens, as in LFM2's models: its state is those tokens.

    A channel convolves `B * x`, and multiplies what it gets by `C`.
    """

    num_heads, value_size = 1, 288
    width = 3
    """W."""
    dtypes = ("float32", "bfloat16")

    @property
    def sizes(self) -> StateSizes:
        """What the convolution looks back at, and no matrix."""
        return StateSizes(conv=(self.value_size, self.width - 1))

    def draw(self, count: int, dtype: torch.dtype, generator: torch.Generator) -> Tokens:
        """Draw `B`, `C` and `x`, [count, C] each, host."""
        drawn = _bounded(count, 3 * self.value_size, generator).to(dtype)
        return dict(zip(("B", "C", "x"), drawn.chunk(3, dim=1), strict=True))

    def weights(self, layer_id: int) -> Mapping[str, Tensor]:
        """Return `conv_weights` [C, W], numbers that each dtype has: float32, host."""
        drawn = _weights_of(layer_id)(self.value_size, self.width)
        return {"conv_weights": (drawn * 4).round() / 8}

    def step(self, layer_id: int, state: State, token: Tokens) -> tuple[State, Tensor]:
        """Convolve the gated token, and gate the result."""
        weights = self.weights(layer_id)["conv_weights"].double()
        kept, convolved = _convolved(state, token["B"] * token["x"], weights)
        return {"conv": kept}, (token["C"] * convolved)[None]


def _weights_of(layer_id: int) -> Callable[..., Tensor]:
    """Return what draws a layer's weights, by their shape: float32, host."""
    generator = torch.Generator().manual_seed(layer_id)
    # An engine may make its layers with other defaults of torch.
    return partial(torch.randn, generator=generator, dtype=torch.float32, device="cpu")


def _bounded(count: int, size: int, generator: torch.Generator) -> Tensor:
    """Draw numbers between -1 and 1, whose products do not grow: [count, size], host.

    What a dtype rounds of a large product is more than its tolerance.
    """
    return torch.rand(count, size, generator=generator) * 2 - 1


def _convolved(state: State, token: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Convolve a token [C] behind those that a state has, by weights [C, W].

    returns  what the state then has [C, W - 1], and the convolution [C]
    """
    window = torch.cat([state["conv"], token[:, None]], dim=1)
    return window[:, 1:], (window * weights).sum(1)


def _normed(heads: Tensor) -> Tensor:
    """Divide each of [Hk, D] by its norm."""
    return heads * torch.rsqrt(heads.square().sum(-1, keepdim=True) + _EPSILON)
