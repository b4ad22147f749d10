"""vLLM's layers of selective state spaces and of short convolutions.

Of Mamba2's mixer the core is run, which is what is between its projections and its norm. A short
convolution is run whole.

Shapes: T tokens, C channels, W tokens of a convolution, H heads, Dv the size of a head's values.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace

import torch
from torch import Tensor

from backend_caps.kit.states.recurrences import (
    NUM_LAYERS,
    SelectiveState,
    ShortConvolution,
    State,
    Tokens,
)
from backend_caps_vllm.kit.engine_modules import VLLM
from backend_caps_vllm.kit.linear_layers import LinearLayers

MIXER = "torch.ops.vllm.mamba_mixer2, by the function that it is registered with"
"""What is called in place of an operator that torch's dispatcher does not find on the device."""
CONVOLUTION = "torch.ops.vllm.short_conv, by the function that it is registered with"
"""The same of short convolutions."""
_LAYERS = "model_executor.layers.mamba"


class SelectiveStateLayers(SelectiveState, LinearLayers):
    """Mamba2's selective state space, by vLLM's mixer and its Triton kernels.

    Drafts are verified: the builder and the mixer read how many tokens of the last verify were
    accepted, and vLLM's second runner passes the number to this builder.
    """

    kept_dtype = "auto"
    takes_drafts = True

    def config_of(self) -> SimpleNamespace:
        """Return the number of layers alone: the mixer takes its sizes as arguments."""
        return SimpleNamespace(num_hidden_layers=NUM_LAYERS)

    def make(self, vllm: VLLM, name: str, config: SimpleNamespace) -> SimpleNamespace:
        """Make `MambaMixer2`, and choose vLLM's Triton kernel of decodes, as its runner does."""
        inner = self.num_heads * self.value_size
        made: SimpleNamespace = vllm.module(f"{_LAYERS}.mamba_mixer2").MambaMixer2(
            hidden_size=inner,
            ssm_state_size=self.state_size,
            conv_kernel_size=self.sizes.conv[1] + 1,
            intermediate_size=inner,
            use_conv_bias=True,
            use_bias=False,
            n_groups=self.num_groups,
            num_heads=self.num_heads,
            head_dim=self.value_size,
            model_config=config.model_config,
            cache_config=config.cache_config,
            prefix=name,
        )
        group = SimpleNamespace(kv_cache_spec=made.get_kv_cache_spec(config))
        vllm.module(f"{_LAYERS}.ops.ssu_dispatch").initialize_mamba_ssu_backend(
            config.mamba_config, SimpleNamespace(kv_cache_groups=[group])
        )
        weights = self.weights(int(name.split(".")[2]))
        own = {
            made.conv1d.weight: weights["conv_weights"].unsqueeze(1),
            made.conv1d.bias: weights["conv_bias"],
            made.A: -weights["A_log"].exp(),
            made.dt_bias: weights["dt_bias"],
            made.D: weights["D"],
        }
        _load(own)
        return made

    def forward(
        self, vllm: VLLM, layer: SimpleNamespace, tokens: Tokens, positions: Tensor
    ) -> Tensor:
        """Call what vLLM's operator of the core runs, which reads no gates of the projection."""
        del positions
        mixed, steps = tokens["mixed_xbc"], tokens["dt"]
        output = mixed.new_empty(len(mixed), self.num_heads * self.value_size)
        projected = torch.cat([torch.full_like(output, torch.nan), mixed, steps], dim=1)
        vllm.module(f"{_LAYERS}.mamba_mixer2").mamba_mixer2(projected, output, layer.prefix)
        return output.view(-1, self.num_heads, self.value_size)

    def states_of(self, layer: SimpleNamespace) -> Mapping[str, Tensor]:
        """Return the matrices of heads and, of a server without drafts, what convolutions keep.

        With drafts, a convolution keeps more tokens, and which count is up to the next forward.
        """
        conv, temporal = layer.kv_cache
        if self.num_drafts:
            return {"temporal": temporal}
        return {"temporal": temporal, "conv": conv.transpose(1, 2)}


class ShortConvolutionLayers(ShortConvolution, LinearLayers):
    """Short convolutions, by the layer of LFM2's models.

    Its projections select: in each channel, `B`, `C` and `x` are entries of the hidden state at
    different places.

    Drafts are verified: the builder and the layer read how many tokens of the last verify were
    accepted, and vLLM's second runner passes the number to this builder.
    """

    kept_dtype = "auto"
    takes_drafts = True

    def config_of(self) -> SimpleNamespace:
        """Return the number of layers, and what the layer reads of its convolution."""
        return SimpleNamespace(
            num_hidden_layers=NUM_LAYERS, conv_L_cache=self.width, conv_bias=False
        )

    def draw(self, count: int, dtype: torch.dtype, generator: torch.Generator) -> Tokens:
        """Draw `hidden_states` [count, C], host."""
        return {"hidden_states": super().draw(count, dtype, generator)["x"]}

    def make(self, vllm: VLLM, name: str, config: SimpleNamespace) -> SimpleNamespace:
        """Make `ShortConv`, whose last projection gives back what it gets."""
        layer_id = int(name.split(".")[2])
        made: SimpleNamespace = vllm.module(f"{_LAYERS}.short_conv").ShortConv(
            self.config_of(),
            dim=self.value_size,
            layer_idx=layer_id,
            model_config=config.model_config,
            cache_config=config.cache_config,
            prefix=name,
        )
        entries = torch.eye(self.value_size, device="cpu", dtype=torch.float32)
        own = {
            made.conv.weight: self.weights(layer_id)["conv_weights"].unsqueeze(1),
            made.in_proj.weight: torch.cat([entries.roll(own, 1) for own in range(3)]),
            made.out_proj.weight: entries,
        }
        _load(own)
        return made

    def step(self, layer_id: int, state: State, token: Tokens) -> tuple[State, Tensor]:
        """Convolve what the projections select."""
        hidden = token["hidden_states"]
        parts = {name: hidden.roll(-place) for place, name in enumerate(("B", "C", "x"))}
        return super().step(layer_id, state, parts)

    def forward(
        self, vllm: VLLM, layer: SimpleNamespace, tokens: Tokens, positions: Tensor
    ) -> Tensor:
        """Call what vLLM's operator of the layer runs."""
        del positions
        hidden = tokens["hidden_states"]
        output = torch.empty_like(hidden)
        vllm.module(f"{_LAYERS}.short_conv").short_conv(hidden, output, layer.prefix)
        return output.view(-1, self.num_heads, self.value_size)

    def states_of(self, layer: SimpleNamespace) -> Mapping[str, Tensor]:
        """Return what convolutions keep; with drafts nothing.

        With drafts, a convolution keeps more tokens, and which count is up to the next forward.
        """
        (conv,) = layer.kv_cache
        return {} if self.num_drafts else {"conv": conv.transpose(1, 2)}


def _load(weights: Mapping[Tensor, Tensor]) -> None:
    """Copy weights, host, into the parameters of a layer."""
    with torch.no_grad():
        for parameter, own in weights.items():
            parameter.copy_(own.to(parameter))
