"""The classes of SGLang's that have an adapter: how each is built, and what is tried of it.

SGLang's server relies on more than its classes declare. It runs them in two-batch overlap, captures
Triton's decodes and verifies, prepares them while the step before runs, and gives it trees; of
torch_native and flex_attention it captures nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from types import SimpleNamespace

import torch
from torch import Tensor

from backend_caps.capability.kind import Role
from backend_caps.capability.sets import OneOf
from backend_caps.capability.vocabulary import BatchKind, Capabilities
from backend_caps_sglang.kit.adapter import Adapted, AdaptedHalves
from backend_caps_sglang.kit.engine_modules import ENGINE
from backend_caps_sglang.kit.gated_layers import GatedDeltaLayers
from backend_caps_sglang.kit.linear_layers import LightningLayers, LinearLayers, MinimaxLayers

Build = Callable[[type, SimpleNamespace], SimpleNamespace]
"""Builds a class over a runner."""
_LAYERS = f"{ENGINE}.srt.layers.attention"
_PLAIN = Capabilities(
    dtypes=frozenset({"float32", "bfloat16", "float16"}),
    head_sizes=OneOf(frozenset({16, 64, 80, 128, 256})),
    page_sizes=OneOf(frozenset({1, 16, 64})),
    max_speculative_topk=1,
    two_batch_overlap=True,
)
_CAPTURED = _PLAIN.model_copy(
    update={
        "max_speculative_topk": 3,
        "sync_free_prepare": True,
        "graph_replay": frozenset({BatchKind.SINGLE_TOKEN_DECODE, BatchKind.UNIFORM_BATCH}),
    }
)


def build_from_runner(own: type, runner: SimpleNamespace) -> SimpleNamespace:
    """Build a class that takes the runner alone."""
    made: SimpleNamespace = own(runner)
    return made


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptedClass:
    """A class that the kit runs."""

    tried: Capabilities
    """What it does not declare, and the server relies on all the same."""
    build: Build = build_from_runner
    """Builds it as the server does."""
    roles: frozenset[Role] | None = None
    """The roles that it is tried in; None: those that SGLang's routing gives it."""
    adapter: type[Adapted] = Adapted
    """Calls it as the engine does."""
    stand_ins: tuple[str, ...] = ()
    """What is run in place of functions that need a GPU, or its compiler."""
    layers: Callable[[], LinearLayers] | None = None
    """What its layers compute, where they keep states; None: they attend to a KV cache."""
    other_layers: Callable[[], LinearLayers] | None = None
    """Those of its other kernels, which a model's configuration chooses; None: it has no others."""


def _triton(runner: SimpleNamespace) -> SimpleNamespace:
    made: SimpleNamespace = import_module(f"{_LAYERS}.triton_backend").TritonAttnBackend(runner)
    return made


def _hybrid(own: type, runner: SimpleNamespace) -> SimpleNamespace:
    """Build the pair of torch_native, which prefills, and Triton, which does all else."""
    native = import_module(f"{_LAYERS}.torch_native_backend").TorchNativeAttnBackend(runner)
    made: SimpleNamespace = own(runner, native, _triton(runner))
    return made


def _halves(_: type, runner: SimpleNamespace) -> SimpleNamespace:
    """Build the wrapper of two-batch overlap around Triton's backends."""
    wrapper = import_module(f"{_LAYERS}.tbo_backend").TboAttnBackend
    made: SimpleNamespace = wrapper.init_new(lambda: _triton(runner))
    return made


def _flex(own: type, runner: SimpleNamespace) -> SimpleNamespace:
    """Build flex_attention, which is not compiled: torch's compiler has no such device."""
    made = build_from_runner(own, runner)
    made.flex_attention = flex_attention_by_definition
    return made


def _linear(own: type, runner: SimpleNamespace) -> SimpleNamespace:
    """Build a class of linear attention, which gathers states' indices as it does on CUDA."""
    made = build_from_runner(own, runner)
    made._fused_state_indices_ok = runner.req_to_token_pool.mamba_translate_is_fusable  # noqa: SLF001
    return made


def _gated(own: type, runner: SimpleNamespace) -> SimpleNamespace:
    """Build the gated delta rule with its Triton kernels, as on CUDA."""
    module = import_module(own.__module__)
    fused = import_module("sglang.kernels.ops.attention.triton_gdn_fused_proj")
    vars(module).update(
        is_cuda=lambda: True, fused_qkv_split_gdn_prefill=fused.fused_qkv_split_gdn_prefill
    )
    triton = module.LinearAttnKernelBackend.TRITON
    runner.linear_attn_backends = module.LinearAttnBackends(triton, triton, triton)
    return _linear(own, runner)


def flex_attention_by_definition(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    block_mask: SimpleNamespace,
    scale: float,
    enable_gqa: bool = False,
) -> Tensor:
    """Compute what `torch.nn.attention.flex_attention` is documented to compute.

    query    [1, Hq, N, D], device
    key      [1, Hk, C, D], device
    value    [1, Hk, C, Dv], device
    returns  [1, Hq, N, Dv], device

    Stream: the current one. Sync: none.
    """
    if enable_gqa:
        group = query.shape[1] // key.shape[1]
        key, value = (own.repeat_interleave(group, dim=1) for own in (key, value))
    rows = torch.arange(query.shape[2], device=query.device)[:, None]
    columns = torch.arange(key.shape[2], device=query.device)[None, :]
    zero = rows.new_zeros(())
    seen = block_mask.mask_mod(zero, zero, rows, columns)
    scores = (query.float() @ key.float().mT) * scale
    weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
    return (weights @ value.float()).to(query.dtype)


_GATHERS_FUSED = "the question whether the device is CUDA, for the fused gather of states' indices"
_STATES = Capabilities(
    dtypes=frozenset({"float32", "bfloat16"}),
    head_sizes=OneOf(frozenset({128})),
    page_sizes=OneOf(frozenset({1})),
    max_speculative_topk=1,
    graph_replay=frozenset({BatchKind.SINGLE_TOKEN_DECODE, BatchKind.UNIFORM_BATCH}),
)

ADAPTED: Mapping[str, AdaptedClass] = {
    "GDNAttnBackend": AdaptedClass(
        tried=_STATES.model_copy(update={"dtypes": frozenset({"bfloat16", "float16"})}),
        build=_gated,
        roles=frozenset({Role.TARGET}),
        stand_ins=(_GATHERS_FUSED, "is_cuda, answered yes"),
        layers=GatedDeltaLayers,
    ),
    "HybridAttnBackend": AdaptedClass(
        tried=_CAPTURED, build=_hybrid, roles=frozenset({Role.TARGET, Role.DRAFT_EXTEND})
    ),
    "LightningAttentionBackend": AdaptedClass(
        tried=_STATES,
        build=_linear,
        roles=frozenset({Role.TARGET}),
        stand_ins=(_GATHERS_FUSED, "torch.cuda.get_device_capability, of minimax: (9, 0)"),
        layers=LightningLayers,
        other_layers=MinimaxLayers,
    ),
    "TboAttnBackend": AdaptedClass(
        tried=_CAPTURED.model_copy(update={"two_batch_overlap": False, "max_speculative_topk": 1}),
        build=_halves,
        adapter=AdaptedHalves,
        roles=frozenset({Role.TARGET, Role.DRAFT_EXTEND}),
    ),
    "TorchFlexAttnBackend": AdaptedClass(
        tried=_PLAIN, build=_flex, stand_ins=("torch.compile(flex_attention), by its definition",)
    ),
    "TorchNativeAttnBackend": AdaptedClass(tried=_PLAIN),
    "TritonAttnBackend": AdaptedClass(tried=_CAPTURED),
    "TritonMultiStepDraftBackend": AdaptedClass(tried=_PLAIN, roles=frozenset({Role.DRAFT})),
}
"""The classes, by name."""
