"""vLLM's layers of lightning attention, and what they compute.

Such a layer projects hidden states to queries, keys, values and gates, and its outputs back. Here
the projections select: a hidden state is what they would make of it, part behind part. So outputs
and states are those of a recurrence, and the layer is vLLM's.

Shapes: T tokens, H heads, D a head's size, S blocks of states.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from unittest.mock import patch

import torch
from torch import Tensor

from backend_caps.kit.states.recurrences import NUM_LAYERS, Lightning, Recurrence, State, Tokens
from backend_caps_vllm.kit.engine_modules import VLLM

OPERATOR = "torch.ops.vllm.linear_attention, by the function that it is registered with"
"""What is called in place of an operator that torch's dispatcher does not find on the device."""
ASKED = "cutlass_scaled_mm_supports_fp8 and _block_fp8, answered no"
"""What vLLM's linear layers ask where they are made."""
CAPABILITY_OPERATORS = ("cutlass_scaled_mm_supports_fp8", "cutlass_scaled_mm_supports_block_fp8")
"""The compiled operators behind that question, which exist for CUDA alone."""
_EPSILON = 1e-5
"""What keeps a norm from 0."""
_MODULES = "model_executor.layers.mamba.linear"


class LinearLayers(Recurrence):
    """The layers of a class of linear attention, as vLLM makes and calls them."""

    num_drafts: int = 0
    """Drafts that the server verifies; 0: it does not speculate."""
    kept_dtype: str = "float32"
    """vLLM's name of the dtype of states that have no option of their own."""
    takes_drafts: bool = False
    """Whether models with these layers are served with drafts."""

    @abstractmethod
    def config_of(self) -> SimpleNamespace:
        """Return the model's configuration, as far as the layer reads it."""

    @abstractmethod
    def make(self, vllm: VLLM, name: str, config: SimpleNamespace) -> SimpleNamespace:
        """Make vLLM's own layer, with its weights, on torch's default device.

        Args:
            vllm: its modules.
            name: of the layer, by which vLLM knows its place in the model.
            config: vLLM's configuration.
        """

    @abstractmethod
    def forward(
        self, vllm: VLLM, layer: SimpleNamespace, tokens: Tokens, positions: Tensor
    ) -> Tensor:
        """Run a layer's forward, within vLLM's forward context.

        tokens     what they bring, device
        positions  [T] int64, device
        returns    [T, H, Dv], device
        """

    @abstractmethod
    def states_of(self, layer: SimpleNamespace) -> Mapping[str, Tensor]:
        """Return views of a layer's states, as the recurrence has them: [S, ...] by name."""


class SelectingLayers(Lightning, LinearLayers):
    """Lightning attention whose hidden states are queries, keys, values and gates."""

    def draw(self, count: int, dtype: torch.dtype, generator: torch.Generator) -> Tokens:
        """Draw `hidden_states` [count, 4 * H * D], host."""
        drawn = torch.randn(count, self.hidden_size, generator=generator)
        return {"hidden_states": drawn.to(dtype)}

    @property
    def hidden_size(self) -> int:
        """Four numbers for each entry of each head."""
        return 4 * self.num_heads * self.head_size

    def sizes_of(self) -> Mapping[str, int]:
        """Return the entries of a model's configuration that say its sizes."""
        return {
            "hidden_size": self.hidden_size,
            "num_attention_heads": self.num_heads,
            "num_hidden_layers": NUM_LAYERS,
            "head_dim": self.head_size,
        }

    def select(self, weights: Sequence[Tensor], last: Tensor) -> None:
        """Let projections take the parts of hidden states in turn, and the last one put back.

        weights  [part, hidden size] each, written
        last     [hidden size, H * D], written
        """
        entries = torch.eye(self.hidden_size)
        parts = torch.split(entries, [len(own) for own in weights])
        with torch.no_grad():
            for weight, part in zip(weights, parts, strict=True):
                weight.copy_(part.to(weight))
            last.copy_(entries[:, : self.num_heads * self.head_size].to(last))

    def forward(
        self, vllm: VLLM, layer: SimpleNamespace, tokens: Tokens, positions: Tensor
    ) -> Tensor:
        """Call what vLLM's operator of linear attention runs, and take the selected outputs."""
        hidden = tokens["hidden_states"]
        output = torch.empty_like(hidden)
        module = vllm.module(f"{_MODULES}.minimax_linear_attn")
        module.linear_attention(hidden, output, positions, layer.prefix)
        shape = -1, self.num_heads, self.head_size
        return output[:, : self.num_heads * self.head_size].reshape(shape)

    def states_of(self, layer: SimpleNamespace) -> Mapping[str, Tensor]:
        """Return the one matrix of each head."""
        return {"temporal": layer.kv_cache[0]}


class MinimaxLayers(SelectingLayers):
    """The layers of MiniMax-Text-01: an activation before the state, a norm and a gate behind."""

    def config_of(self) -> SimpleNamespace:
        """Return sizes alone."""
        return SimpleNamespace(**self.sizes_of())

    def make(self, vllm: VLLM, name: str, config: SimpleNamespace) -> SimpleNamespace:
        """Make `MiniMaxText01LinearAttention`; a head's query, key and value lie together."""
        module = vllm.module(f"{_MODULES}.minimax_linear_attn")
        made: SimpleNamespace = module.MiniMaxText01LinearAttention(
            self.config_of(), config, prefix=name
        )
        self.select([made.qkv_proj.weight, made.output_gate.weight], made.out_proj.weight)
        return made

    def step(self, layer_id: int, state: State, token: Tokens) -> tuple[State, Tensor]:
        """Activate queries, keys and values; norm all heads' outputs as one; gate them."""
        *heads, gate = token["hidden_states"].chunk(4)
        shape = self.num_heads, 3, self.head_size
        parts = torch.nn.functional.silu(torch.cat(heads)).view(shape).unbind(1)
        state, output = self.bring(layer_id, state, *parts)
        return state, _normed(output.flatten()).mul(gate.sigmoid()).view_as(output)


class BailingLayers(SelectingLayers):
    """The layers of Bailing's models: norms of queries, keys and outputs by heads, and a gate.

    Rotary embeddings are left out, by the model's configuration.
    """

    takes_drafts = True

    def config_of(self) -> SimpleNamespace:
        """As of a model with all norms."""
        return SimpleNamespace(
            **self.sizes_of(),
            max_position_embeddings=512,
            use_qk_norm=True,
            linear_rope=False,
            rms_norm_eps=_EPSILON,
            use_bias=False,
            use_qkv_bias=False,
            group_norm_size=self.num_heads,
        )

    def make(self, vllm: VLLM, name: str, config: SimpleNamespace) -> SimpleNamespace:
        """Make `BailingMoELinearAttention`; all heads' queries lie before their keys."""
        module = vllm.module(f"{_MODULES}.bailing_linear_attn")
        made: SimpleNamespace = module.BailingMoELinearAttention(
            self.config_of(), config, prefix=name
        )
        self.select([made.query_key_value.weight, made.g_proj.weight], made.dense.weight)
        return made

    def step(self, layer_id: int, state: State, token: Tokens) -> tuple[State, Tensor]:
        """Norm each head's query and key, and its output, which is gated."""
        shape = 4, self.num_heads, self.head_size
        q, k, v, gate = token["hidden_states"].view(shape)
        q, k = _normed(q) * self.head_size**-0.5, _normed(k)
        state, output = self.bring(layer_id, state, q, k, v)
        return state, _normed(output) * gate.sigmoid()


def _normed(entries: Tensor) -> Tensor:
    """Divide entries [..., D] by the root of their mean square."""
    return entries * torch.rsqrt(entries.square().mean(-1, keepdim=True) + _EPSILON)


@contextmanager
def without_operators(vllm: VLLM) -> Iterator[None]:
    """Answer what vLLM's linear layers ask compiled operators, within a `with` block."""
    asked = dict.fromkeys(CAPABILITY_OPERATORS, lambda _capability: False)
    with patch.dict(vars(vllm.module("_custom_ops")), asked):
        yield
