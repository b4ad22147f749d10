"""Layers that keep a state in place of a KV cache: what tokens bring, and the recurrence.

A state is a few tensors of one request in one layer. Each token replaces it, and gives an output.

Shapes: T tokens, H heads, D the size of a head's keys, Dv that of its values.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import TypeAlias
from unittest.mock import patch

import torch
from torch import Tensor

from backend_caps.kit.scenes import layer_of
from backend_caps_sglang.kit.engine_modules import SGLang
from backend_caps_sglang.kit.runner import attention_of
from backend_caps_sglang.kit.variants import PLAIN

State: TypeAlias = Mapping[str, Tensor]
"""What a layer keeps of a request, by the name of the pool's tensor: `temporal`, `conv`."""
Tokens: TypeAlias = Mapping[str, Tensor]
"""What tokens bring to a layer, by the argument's name: [T, ...] each."""

LAYER_IDS = (0, 2)
"""The layers that keep states, of three: the one between them attends to a KV cache."""
NUM_LAYERS = 3
_ARGUMENTS = ("q", "k", "v", "mixed_qkv", "a", "b")
"""What the hybrid backend passes on, given or not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSizes:
    """The shapes of one request's state in one layer."""

    temporal: tuple[int, int, int]
    """Heads, and the two sizes of a head's state."""
    conv: tuple[int, int] = (1, 1)
    """Channels, and the tokens of a convolution that it keeps."""


class LinearLayers(ABC):
    """The layers of a class of linear attention."""

    num_heads: int
    """H, of outputs."""
    value_size: int
    """Dv."""
    dtypes: Sequence[str]
    """Of what tokens bring, by turns."""
    lengths: Sequence[int] = (1, 2, 5, 31, 32, 33, 64, 70)
    """Tokens of a prompt or chunk: few, and around the ends of kernels' blocks."""

    @property
    @abstractmethod
    def sizes(self) -> StateSizes:
        """The shapes of a state."""

    @property
    @abstractmethod
    def config(self) -> Mapping[str, object]:
        """What the class reads of the model's configuration."""

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

    @abstractmethod
    def layer(
        self, sglang: SGLang, layer_id: int, device: str, dtype: torch.dtype
    ) -> torch.nn.Module:
        """Make SGLang's own layer on a device, for tokens of a dtype."""

    @abstractmethod
    def arguments(self, tokens: Tokens) -> Mapping[str, Tensor]:
        """Return the arguments of a class's forward that tokens bring."""

    def forward(
        self,
        backend: SimpleNamespace,
        layer: torch.nn.Module,
        batch: SimpleNamespace,
        tokens: Tokens,
    ) -> Tensor:
        """Run a layer's forward, as `HybridLinearAttnBackend.forward` calls its linear backend.

        returns  [T, H, Dv], device
        """
        is_decode = batch.logical_forward_mode.is_decode()
        call = backend.forward_decode if is_decode else backend.forward_extend
        named = {**dict.fromkeys(_ARGUMENTS), **self.arguments(tokens)}
        output: Tensor = call(layer=layer, forward_batch=batch, save_kv_cache=True, **named)
        return output.reshape(-1, self.num_heads, self.value_size)


class LightningLayers(LinearLayers):
    """Lightning attention: keys and values add to a state that each token decays.

    A head decays by `exp(-slope)` at each token. Slopes are those of ALiBi, less in later layers.
    """

    num_heads, head_size, value_size = 2, 128, 128
    dtypes: Sequence[str] = ("float32", "bfloat16")

    @property
    def sizes(self) -> StateSizes:
        """A matrix of each head."""
        return StateSizes(temporal=(self.num_heads, self.head_size, self.head_size))

    @property
    def config(self) -> Mapping[str, object]:
        """As of a model whose every head has keys of its own."""
        return {"num_attention_heads": self.num_heads, "num_hidden_layers": NUM_LAYERS}

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
        decays = torch.exp(-self.slopes(layer_id))[:, None, None]
        temporal = state["temporal"] * decays + k[:, :, None] * v[:, None, :]
        output = torch.einsum("hd,hde->he", q * self.head_size**-0.5, temporal)
        return {"temporal": temporal}, output

    def slopes(self, layer_id: int) -> Tensor:
        """Return the slopes of a layer: [H] float64, host."""
        exponents = torch.arange(1, self.num_heads + 1, dtype=torch.float64) * 8 / self.num_heads
        return 2**-exponents * (1 - layer_id / (NUM_LAYERS - 1) + 1e-5)

    def layer(
        self, sglang: SGLang, layer_id: int, device: str, dtype: torch.dtype
    ) -> torch.nn.Module:
        """Make SGLang's own layer, which has no tensors."""
        del dtype
        sizes = self.num_heads, self.num_heads, self.head_size
        own = replace(layer_of(*sizes, scaling=self.head_size**-0.5), layer_id=layer_id)
        return attention_of(sglang, own, PLAIN, device)

    def arguments(self, tokens: Tokens) -> Mapping[str, Tensor]:
        """Return queries, keys and values: views [T, H, D] of what the projection gave, device."""
        parts = tokens["qkv"].chunk(3, dim=-1)
        shape = -1, self.num_heads, self.head_size
        return {name: part.view(shape) for name, part in zip("qkv", parts, strict=True)}


class MinimaxLayers(LightningLayers):
    """Lightning attention with the kernels of `linear_backend = "minimax"`.

    They take queries that are scaled before, in blocks of 256 tokens. They run no verify.
    """

    dtypes: Sequence[str] = ("float32",)
    lengths = (1, 2, 5, 33, 64, 70, 260)

    @property
    def config(self) -> Mapping[str, object]:
        """As of a model whose configuration chooses these kernels."""
        return {**super().config, "linear_backend": "minimax"}

    def arguments(self, tokens: Tokens) -> Mapping[str, Tensor]:
        """Return scaled queries, keys and values: [T, H, D] each, device."""
        made = super().arguments(tokens)
        return {**made, "q": made["q"] * self.head_size**-0.5}

    def forward(
        self,
        backend: SimpleNamespace,
        layer: torch.nn.Module,
        batch: SimpleNamespace,
        tokens: Tokens,
    ) -> Tensor:
        """Run a layer's forward, on what it takes for a GPU of its kernels' kind."""
        with patch.object(torch.cuda, "get_device_capability", return_value=(9, 0)):
            return super().forward(backend, layer, batch, tokens)
