"""SGLang's layers that keep a state in place of a KV cache: made, and called.

Shapes: T tokens, H heads, D the size of a head's keys, Dv that of its values.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import patch

import torch
from torch import Tensor

from backend_caps.kit.scenes import layer_of
from backend_caps.kit.states.recurrences import NUM_LAYERS, Lightning, Recurrence, Tokens
from backend_caps_sglang.kit.engine_modules import SGLang
from backend_caps_sglang.kit.runner import attention_of
from backend_caps_sglang.kit.variants import PLAIN

_ARGUMENTS = ("q", "k", "v", "mixed_qkv", "a", "b")
"""What the hybrid backend passes on, given or not."""


class LinearLayers(Recurrence):
    """The layers of a class of linear attention, as SGLang makes and calls them."""

    @property
    @abstractmethod
    def config(self) -> Mapping[str, object]:
        """What the class reads of the model's configuration."""

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


class LightningLayers(Lightning, LinearLayers):
    """Lightning attention, by the kernels that SGLang takes by default."""

    @property
    def config(self) -> Mapping[str, object]:
        """As of a model whose every head has keys of its own."""
        return {"num_attention_heads": self.num_heads, "num_hidden_layers": NUM_LAYERS}

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
