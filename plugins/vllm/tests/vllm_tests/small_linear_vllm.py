"""vLLM's linear attention made small: a builder and a layer that keep states by the recurrence.

Shapes: B requests and T tokens in a batch, H heads, D a head's size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import cast

import torch
from backend_caps_vllm.kit.engine_modules import VLLM
from backend_caps_vllm.kit.linear_layers import BailingLayers
from torch import Tensor

from backend_caps.kit.states.recurrences import Tokens


class SmallLayers(BailingLayers):
    """Lightning attention of small heads, run by `Layer`."""

    num_heads, head_size, value_size = 2, 4, 4
    lengths = (1, 2, 7)

    def make(self, vllm: object, name: str, config: SimpleNamespace) -> SimpleNamespace:
        """Make a layer in plain torch."""
        del vllm
        made = Layer(int(name.split(".")[2]), self, config)
        config.compilation_config.static_forward_context[name] = made
        return made

    def forward(
        self, vllm: object, layer: SimpleNamespace, tokens: Tokens, positions: Tensor
    ) -> Tensor:
        """Run it with what the forward context has."""
        del vllm, positions
        output: Tensor = layer.run(tokens["hidden_states"], CONTEXT.metadata)
        return output


class Layer(SimpleNamespace):
    """A layer that brings each request's tokens into its blocks, token by token."""

    def __init__(self, layer_id: int, layers: SmallLayers, config: SimpleNamespace) -> None:
        super().__init__(slopes=layers.slopes(layer_id), layers=layers, config=config)

    def get_state_shape(self) -> tuple[tuple[int, ...], ...]:
        """Return the one matrix of each head."""
        return (self.layers.sizes.temporal,)

    def get_state_dtype(self) -> tuple[torch.dtype, ...]:
        """Keep states in float32."""
        return (torch.float32,)

    def get_kv_cache_spec(self, _config: object) -> None:
        """Describe nothing that the builder reads."""

    def bind_kv_cache(self, pages: Tensor) -> None:
        """View pages as states."""
        states = pages.flatten(1).view(torch.float32)
        self.kv_cache = (states.view(-1, *self.layers.sizes.temporal),)

    def run(self, hidden: Tensor, metadata: Metadata) -> Tensor:
        """Compute on the host what the recurrence gives: [T, H, D], device."""
        blocks, outputs = self.kv_cache[0], []
        start = 0
        for place, count in enumerate(metadata.counts):
            rows = metadata.blocks[place : place + 1]
            first = rows[0, (metadata.accepted[place : place + 1] - 1).clamp(min=0).long()]
            state = blocks[first.long()][0].double()
            if metadata.fresh[place]:
                state = torch.zeros_like(state)
            for token in range(start, start + count):
                state, output = self._step(state, hidden[token])
                outputs.append(output)
                if metadata.verifies[place]:
                    blocks[rows[0, token - start : token - start + 1].long()] = state[None].float()
            if not metadata.verifies[place]:
                blocks[rows[0, :1].long()] = state[None].float()
            start += count
        return torch.stack(outputs).to(hidden.dtype)

    def _step(self, state: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v, gate = hidden.double().view(4, self.layers.num_heads, self.layers.head_size)
        q, k = (own * torch.rsqrt(own.square().mean(-1, keepdim=True) + 1e-5) for own in (q, k))
        state = state * torch.exp(-self.slopes)[:, None, None] + k[:, :, None] * v[:, None, :]
        output = (q[:, :, None] * self.layers.head_size**-0.5 * state).sum(1)
        normed = output * torch.rsqrt(output.square().mean(-1, keepdim=True) + 1e-5)
        return state, normed * gate.sigmoid()


@dataclass
class Metadata:
    """What the small builder makes of a batch."""

    counts: list[int]
    fresh: list[bool]
    blocks: Tensor
    accepted: Tensor
    verifies: list[bool]


@dataclass
class Context:
    """The metadata of the forward that runs."""

    metadata: Metadata


CONTEXT = Context(Metadata([], [], torch.empty(0), torch.empty(0), []))


class Builder:
    """A builder in vLLM's form."""

    shortest_prefill = 1
    """Tokens from which on a request without context is taken for new."""
    is_stale = False
    """Whether a replay keeps the blocks of its capture."""
    takes_accepted = True
    """Whether the accepted tokens of a verify count."""
    waits = False
    """Whether it waits for the device."""

    def __init__(self, *_words: object) -> None:
        self.static: Metadata | None = None

    def build(
        self,
        _prefix: int,
        common: SimpleNamespace,
        num_accepted_tokens: Tensor | None = None,
        num_decode_draft_tokens_cpu: Tensor | None = None,
    ) -> Metadata:
        """Make the metadata; of a captured size, in the tensors of its capture."""
        counts = common.query_start_loc_cpu.diff()
        olds = common.seq_lens_cpu_upper_bound - counts
        drafts = num_decode_draft_tokens_cpu
        accepted = torch.ones_like(common.seq_lens)
        if num_accepted_tokens is not None and self.takes_accepted:
            accepted = num_accepted_tokens
        made = Metadata(
            counts=counts.tolist(),
            fresh=[
                not old and count >= self.shortest_prefill
                for old, count in zip(olds.tolist(), counts.tolist(), strict=True)
            ],
            blocks=common.block_table_tensor,
            accepted=accepted,
            verifies=[False] * len(counts) if drafts is None else (drafts >= 0).tolist(),
        )
        if self.waits:
            int(common.seq_lens[0])
        return made

    def build_for_cudagraph_capture(self, common: SimpleNamespace) -> Metadata:
        """Make metadata over the buffers, of decodes or verifies without new requests."""
        each = common.max_query_len
        count = torch.diff(common.query_start_loc) if each > 1 else torch.ones_like(common.seq_lens)
        self.accepted = count.clone()
        made = Metadata(
            counts=[each] * common.num_reqs,
            fresh=[False] * common.num_reqs,
            blocks=common.block_table_tensor.clone()
            if self.is_stale
            else common.block_table_tensor,
            accepted=self.accepted,
            verifies=[each > 1] * common.num_reqs,
        )
        self.static = made
        return made


class ReplayedBuilder(Builder):
    """Keeps the accepted tokens of a replay where its graph reads them."""

    def build(
        self,
        _prefix: int,
        common: SimpleNamespace,
        num_accepted_tokens: Tensor | None = None,
        num_decode_draft_tokens_cpu: Tensor | None = None,
    ) -> Metadata:
        """Refill the buffer of a capture of that size."""
        made = super().build(_prefix, common, num_accepted_tokens, num_decode_draft_tokens_cpu)
        static = self.static
        if static is not None and len(static.accepted) == len(made.accepted):
            static.accepted.copy_(made.accepted)
        return made


class Unclear(ReplayedBuilder):
    """Takes a prompt of one token for a decode."""

    shortest_prefill = 2


class Stale(ReplayedBuilder):
    """Replays with the blocks of its capture."""

    is_stale = True


class Rejected(ReplayedBuilder):
    """Begins behind a verify with the state of its first token."""

    takes_accepted = False


class Waiting(ReplayedBuilder):
    """Waits for the device in each build."""

    waits = True


def backend_of(builder: type[Builder]) -> SimpleNamespace:
    """Make a class of vLLM's that has a builder."""
    return SimpleNamespace(get_builder_cls=lambda: builder)


@contextmanager
def _override(metadata: Metadata) -> Iterator[None]:
    before, CONTEXT.metadata = CONTEXT.metadata, metadata
    yield
    CONTEXT.metadata = before


def _forward_context(**named: object) -> Metadata:
    attn_metadata = named["attn_metadata"]
    assert isinstance(attn_metadata, dict)
    made = next(iter(attn_metadata.values()))
    assert isinstance(made, Metadata)
    return made


def _common(**named: object) -> SimpleNamespace:
    return SimpleNamespace(**named)


class SilentBatch(SimpleNamespace):
    """vLLM's batch of states, which tells builders nothing."""

    def __init__(self, is_prefilling: Tensor, **named: object) -> None:
        super().__init__(is_prefilling=is_prefilling, **named)

    def get_extra_attn_kwargs(self, _builder: object, _num_reqs: int) -> dict[str, Tensor]:
        """Return nothing."""
        return {}


_MODULES: dict[str, SimpleNamespace] = {
    "envs": SimpleNamespace(VLLM_USE_V2_MODEL_RUNNER=False),
    "v1.worker.gpu.model_states.mamba_hybrid": SimpleNamespace(MambaHybridAttnMetadata=SilentBatch),
    "utils.torch_utils": SimpleNamespace(set_default_torch_dtype=lambda _: nullcontext()),
    "forward_context": SimpleNamespace(
        ForwardContext=_forward_context, override_forward_context=_override
    ),
}


def _small_vllm() -> SimpleNamespace:
    """Make what the runner imports of vLLM."""
    own = {"_custom_ops": {}, "distributed.parallel_state": {"_TP": None}}
    modules: dict[str, object] = {**_MODULES}
    for name, values in own.items():
        modules[name] = ModuleType(name)
        vars(modules[name]).update(values)
    make: Callable[..., SimpleNamespace] = SimpleNamespace
    return SimpleNamespace(
        module=modules.__getitem__,
        attention=SimpleNamespace(CommonAttentionMetadata=_common),
        config=SimpleNamespace(
            set_current_vllm_config=lambda _: nullcontext(),
            CompilationConfig=lambda **named: make(**named, static_forward_context={}),
            CUDAGraphMode=SimpleNamespace(FULL_AND_PIECEWISE="full"),
            KernelConfig=SimpleNamespace,
            MambaConfig=SimpleNamespace,
        ),
    )


SMALL = cast("VLLM", _small_vllm())
