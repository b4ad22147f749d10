"""SGLang's layers of the gated delta rule."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from backend_caps.kit.states.recurrences import NUM_LAYERS, GatedDelta, Tokens
from backend_caps_sglang.kit.engine_modules import SGLang
from backend_caps_sglang.kit.linear_layers import LinearLayers


class GatedDeltaLayers(GatedDelta, LinearLayers):
    """The gated delta rule, by SGLang's Triton kernels."""

    @property
    def config(self) -> Mapping[str, object]:
        """Nothing that the class reads."""
        return {"num_hidden_layers": NUM_LAYERS}

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
