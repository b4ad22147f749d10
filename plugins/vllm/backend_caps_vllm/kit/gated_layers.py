"""vLLM's layers of the gated delta rule: their core, between the projections and the norm.

Shapes: T tokens, C channels, W tokens of the convolution, H heads of values, Dv their size, S
blocks of states.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace

import torch
from torch import Tensor

from backend_caps.kit.states.recurrences import NUM_LAYERS, GatedDelta, Tokens
from backend_caps_vllm.kit.engine_modules import VLLM
from backend_caps_vllm.kit.linear_layers import LinearLayers

CORE = "torch.ops.vllm.qwen_gdn_attention_core, by the function that it is registered with"
"""What is called in place of an operator that torch's dispatcher does not find on the device."""
KERNELS = "FlashInfer's prefills and the fused CUDA decodes, by vLLM's own Triton kernels"
"""What vLLM has for a GPU of the simulated device's kind, and its options replace."""
_MODULE = "model_executor.layers.mamba.gdn.qwen_gdn_linear_attn"


class GatedDeltaLayers(GatedDelta, LinearLayers):
    """The gated delta rule, by the layer of Qwen's models and vLLM's Triton kernels."""

    kept_dtype = "auto"
    takes_drafts = True

    def config_of(self) -> SimpleNamespace:
        """Return sizes, and the activation of convolutions."""
        return SimpleNamespace(
            hidden_size=sum(self.parts),
            hidden_act="silu",
            rms_norm_eps=1e-6,
            num_hidden_layers=NUM_LAYERS,
            linear_num_key_heads=self.num_key_heads,
            linear_num_value_heads=self.num_heads,
            linear_key_head_dim=self.head_size,
            linear_value_head_dim=self.value_size,
            linear_conv_kernel_dim=self.sizes.conv[1] + 1,
        )

    def make(self, vllm: VLLM, name: str, config: SimpleNamespace) -> SimpleNamespace:
        """Make `QwenGatedDeltaNetAttention`, as Qwen3.5 has it."""
        module = vllm.module(_MODULE)
        made: SimpleNamespace = module.QwenGatedDeltaNetAttention(
            self.config_of(), config, prefix=name
        )
        weights = self.weights(made.layer_idx)
        with torch.no_grad():
            made.conv1d.weight.copy_(weights["conv_weights"].unsqueeze(1).to(made.conv1d.weight))
            made.A_log.copy_(weights["A_log"].to(made.A_log))
            made.dt_bias.copy_(weights["dt_bias"].to(made.dt_bias))
        return made

    def forward(
        self, vllm: VLLM, layer: SimpleNamespace, tokens: Tokens, positions: Tensor
    ) -> Tensor:
        """Call what vLLM's operator of the core runs, as the layer's forward does."""
        del positions
        shape = len(tokens["a"]), self.num_heads, self.value_size
        output = tokens["mixed_qkv"].new_zeros(shape)
        core = vllm.module(_MODULE).qwen_gdn_attention_core
        core(tokens["mixed_qkv"], tokens["b"], tokens["a"], output, layer.prefix)
        return output

    def states_of(self, layer: SimpleNamespace) -> Mapping[str, Tensor]:
        """Return the matrices of heads and, of a server without drafts, what convolutions keep.

        With drafts, a convolution keeps more tokens, and which count is up to the next forward.
        """
        conv, temporal = layer.kv_cache
        if self.num_drafts:
            return {"temporal": temporal}
        return {"temporal": temporal, "conv": conv.transpose(1, 2)}
