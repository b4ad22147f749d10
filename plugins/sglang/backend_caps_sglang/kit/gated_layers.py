"""Layers of the gated delta rule: a convolution over a few tokens, then a state that forgets.

Shapes: T tokens, C channels, W tokens of the convolution, Hk heads of queries and keys, H heads of
values, D a head's size.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from backend_caps_sglang.kit.engine_modules import SGLang
from backend_caps_sglang.kit.linear_layers import (
    NUM_LAYERS,
    LinearLayers,
    State,
    StateSizes,
    Tokens,
)

_WIDTH = 4
"""W."""
_EPSILON = 1e-6
"""What keeps a norm from 0."""


class GatedDeltaLayers(LinearLayers):
    """The gated delta rule: a head's state forgets, and replaces what its key finds by the value.

    Gates are `exp(-exp(A_log) * softplus(a + dt_bias))` and `sigmoid(b)`. Queries and keys have
    norm 1.
    """

    num_key_heads, num_heads, head_size, value_size = 1, 2, 128, 128
    dtypes = ("bfloat16", "float16")

    @property
    def sizes(self) -> StateSizes:
        """A matrix of each head, by values and keys; and what the convolution looks back at."""
        temporal = self.num_heads, self.value_size, self.head_size
        return StateSizes(temporal=temporal, conv=(sum(self._parts), _WIDTH - 1))

    @property
    def _parts(self) -> tuple[int, int, int]:
        """Channels of queries, keys and values."""
        keys = self.num_key_heads * self.head_size
        return keys, keys, self.num_heads * self.value_size

    @property
    def config(self) -> Mapping[str, object]:
        """Nothing that the class reads."""
        return {"num_hidden_layers": NUM_LAYERS}

    def draw(self, count: int, dtype: torch.dtype, generator: torch.Generator) -> Tokens:
        """Draw `mixed_qkv` [count, C], and the gates `a` and `b` [count, H]; host."""
        sizes = {"mixed_qkv": sum(self._parts), "a": self.num_heads, "b": self.num_heads}
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
        drawn = torch.randn(sum(self._parts), _WIDTH, generator=generator)
        gates = torch.randn(2, self.num_heads, generator=generator)
        a_log, bias = (gates * 8).round() / 8
        return {"conv_weights": (drawn * 4).round() / 8, "A_log": a_log, "dt_bias": bias}

    def step(self, layer_id: int, state: State, token: Tokens) -> tuple[State, Tensor]:
        """Convolve, forget, correct what the key finds, and read by the query."""
        weights = {name: own.double() for name, own in self.weights(layer_id).items()}
        window = torch.cat([state["conv"], token["mixed_qkv"][:, None]], dim=1)
        mixed = nn.functional.silu((window * weights["conv_weights"]).sum(1))
        q, k, v = torch.split(mixed, [*self._parts])
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

    def layer(
        self, sglang: SGLang, layer_id: int, device: str, dtype: torch.dtype
    ) -> torch.nn.Module:
        """Make SGLang's own layer, with its weights on a device."""
        weights = {name: own.to(device) for name, own in self.weights(layer_id).items()}
        weights["conv_weights"] = weights["conv_weights"].to(dtype)
        made: torch.nn.Module = sglang.linear_layers.RadixLinearAttention(
            layer_id=layer_id,
            num_q_heads=self.num_key_heads,
            num_k_heads=self.num_key_heads,
            num_v_heads=self.num_heads,
            head_q_dim=self.head_size,
            head_k_dim=self.head_size,
            head_v_dim=self.value_size,
            activation="silu",
            **weights,
        )
        return made

    def arguments(self, tokens: Tokens) -> Mapping[str, Tensor]:
        """Return what tokens bring as it is."""
        return tokens


def _normed(heads: Tensor) -> Tensor:
    """Divide each of [Hk, D] by its norm."""
    return heads * torch.rsqrt(heads.square().sum(-1, keepdim=True) + _EPSILON)
