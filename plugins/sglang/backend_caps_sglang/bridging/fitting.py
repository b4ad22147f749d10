"""Why a backend cannot serve an SGLang server or one of its layers. Imports nothing of SGLang."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import torch

from backend_caps import Declaration, Facts, Phase, Plan, Role, RuleSet, ServerFlags, Use, resolve
from backend_caps.capability.vocabulary import AttentionArch
from backend_caps.protocols import Layer, ReqToTokenPool
from backend_caps.resolution.plan import Policy
from backend_caps.resolution.problems import misfits_of
from backend_caps_sglang.bridging.views import SGLangPool

RULES = "sglang-0.5.23"
_SERVED = (Phase.PREFILL, Phase.DECODE)


_CACHE_DTYPES = {"torch.float8_e4m3fn": "fp8_e4m3", "torch.float8_e5m2": "fp8_e5m2"}
"""Of torch's dtypes, those that declarations call by SGLang's names."""

_ARCHS = {arch.name: arch for arch in AttentionArch}


class Named(Protocol):
    """A member of one of SGLang's enums."""

    @property
    def name(self) -> str:
        """Its name."""


class SGLangModel(Protocol):
    """What is read of SGLang's `ModelConfig`."""

    attention_arch: Named
    head_dim: int
    context_len: int
    is_encoder_decoder: bool


class SGLangRunner(Protocol):
    """What is read of SGLang's model runner."""

    device: str
    dtype: torch.dtype
    kv_cache_dtype: torch.dtype
    page_size: int
    sliding_window_size: int | None
    is_draft_worker: bool
    model_config: SGLangModel
    req_to_token_pool: ReqToTokenPool
    token_to_kv_pool: SGLangPool


class SGLangLayer(Layer, Protocol):
    """What is read of SGLang's `RadixAttention`."""

    logit_cap: float | None
    sliding_window_size: int
    is_cross_attention: bool
    xai_temperature_len: int
    k_scale: object
    v_scale: object
    attn_type: Named


def plan_of(name: str, declaration: Declaration, runner: SGLangRunner, flags: ServerFlags) -> Plan:
    """Resolve what a backend needs and supports as the target of this server."""
    uses = [
        Use(backend=name, role=Role.TARGET, phase=phase, declaration=declaration)
        for phase in _SERVED
    ]
    rules = RuleSet.builtin(RULES)
    return resolve(uses, flags, rules=rules, facts=facts_of(runner), policy=Policy.QUIET)


def facts_of(runner: SGLangRunner) -> Facts:
    """Say what SGLang's runner knows of machine and model."""
    device, model = torch.device(runner.device), runner.model_config
    cache_dtype = str(runner.kv_cache_dtype)
    known: dict[str, object] = {
        "device": device.type,
        "dtype": str(runner.dtype),
        "kv_cache_dtype": _CACHE_DTYPES.get(cache_dtype, cache_dtype),
        "head_size": model.head_dim,
        "page_size": runner.page_size,
        "context_length": model.context_len,
        # A family that nobody knows here stays open.
        "attention_arch": _ARCHS.get(model.attention_arch.name),
    }
    if device.type == "cuda":
        known["rocm"] = torch.version.hip is not None
        if torch.version.hip is None:
            known["compute_capability"] = torch.cuda.get_device_capability(device)
    return Facts.model_validate(known)


def reasons_of_server(plan: Plan, runner: SGLangRunner, *, is_dcp: bool) -> Iterator[str]:
    """List why a backend cannot serve here: what it declares, and what is not bridged."""
    told = {
        f"it takes {reason.fact} {reason.needed}; here it is {reason.actual}"
        for use in plan.uses
        if use.declaration is not None
        for reason in misfits_of(use, use.declaration, plan)
        if reason.needed is not None
    }
    yield from sorted(told)
    flags = plan.flags
    unbridged = {
        "the runner is a draft model's, and drafts are not bridged": runner.is_draft_worker,
        f"--speculative-algorithm {flags.speculative_algorithm} verifies drafts, and verified "
        "batches are not bridged": flags.speculative_algorithm is not None,
        "--enable-two-batch-overlap is not bridged": flags.enable_two_batch_overlap is True,
        "decode context parallelism merges by log-sum-exp, which is not bridged": is_dcp,
        "the model's sliding windows are not bridged": runner.sliding_window_size is not None,
        "encoder-decoder models are not bridged": runner.model_config.is_encoder_decoder,
    }
    yield from (reason for reason, holds in unbridged.items() if holds)


def reasons_of_layer(layer: SGLangLayer) -> Iterator[str]:
    """List what a layer asks for that a backend of backend-caps is not told."""
    unbridged = {
        f"its logits are capped at {layer.logit_cap}": bool(layer.logit_cap),
        f"it has a sliding window of {layer.sliding_window_size}": layer.sliding_window_size > -1,
        "it attends to an encoder's output": layer.is_cross_attention,
        "its temperature follows the position": layer.xai_temperature_len > 0,
        "its cache has scales": layer.k_scale is not None or layer.v_scale is not None,
        f"its attention is {layer.attn_type.name}": layer.attn_type.name != "DECODER",
    }
    yield from (reason for reason, holds in unbridged.items() if holds)
