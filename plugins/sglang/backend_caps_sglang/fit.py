"""Why a backend cannot serve an SGLang server or one of its layers. Imports nothing of SGLang."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import torch

from backend_caps import Declaration, Facts, Phase, Plan, Role, RuleSet, ServerFlags, Use, resolve
from backend_caps.capability.vocabulary import AttentionArch
from backend_caps.protocols import Layer, ReqToTokenPool
from backend_caps.resolution.plan import Policy
from backend_caps.resolution.problems import misfits_of, problems_of_values
from backend_caps_sglang.views import Named, SGLangPool

RULES = "sglang-0.5.23"
SPECULATION = ("EAGLE", "EAGLE3", "STANDALONE")
"""The algorithms whose verify and draft batches are bridged."""
Place = tuple[Role, Phase]
DRAFT_STEPS: tuple[Place, ...] = ((Role.DRAFT, Phase.DECODE),)
"""What SGLang's multi-step container runs, each step in a backend of its own."""
_DRAFT_EXTEND = ((Role.DRAFT, Phase.PREFILL), (Role.DRAFT_EXTEND, Phase.VERIFY))
_TARGET = ((Role.TARGET, Phase.PREFILL), (Role.TARGET, Phase.DECODE))
_CACHE_DTYPES = {"torch.float8_e4m3fn": "fp8_e4m3", "torch.float8_e5m2": "fp8_e5m2"}
"""Of torch's dtypes, those that declarations call by SGLang's names."""

_ARCHS = {arch.name: arch for arch in AttentionArch}


class SGLangModel(Protocol):
    """What is read of SGLang's `ModelConfig`."""

    attention_arch: Named
    head_dim: int
    context_len: int
    is_encoder_decoder: bool


class Translator(Protocol):
    """What is read of SGLang's `KVIndexTranslator`."""

    is_translating: bool
    """Whether the page table holds other numbers than the slots of the pool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """What SGLang's runtime context says of speculation."""

    topk: int
    """The width of the draft tree; 1 is a chain, also where nothing is drafted."""
    num_draft_tokens: int
    """Tokens of a verify, of each request; 1 where nothing is drafted."""
    is_adaptive: bool
    has_layers: bool
    """Whether the draft is of several layers that run one after the other."""


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
    kv_index_translator: Translator


class SGLangLayer(Layer, Protocol):
    """What is read of SGLang's `RadixAttention`."""

    logit_cap: float | None
    sliding_window_size: int
    is_cross_attention: bool
    xai_temperature_len: int
    k_scale: object
    v_scale: object
    attn_type: Named


def places_of(runner: SGLangRunner, flags: ServerFlags) -> tuple[Place, ...]:
    """List what SGLang runs in the backend that it builds for a runner.

    A draft's runner runs its prefill and its draft-extend in one backend; the steps between them
    are the container's.
    """
    if runner.is_draft_worker:
        return _DRAFT_EXTEND
    verify = () if flags.speculative_algorithm is None else ((Role.TARGET, Phase.VERIFY),)
    return (*_TARGET, *verify)


def plan_of(
    name: str,
    declaration: Declaration,
    runner: SGLangRunner,
    flags: ServerFlags,
    places: Iterable[Place],
) -> Plan:
    """Resolve what a backend needs and supports in these places of this server."""
    uses = [
        Use(backend=name, role=role, phase=phase, declaration=declaration) for role, phase in places
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


def reasons_of_server(
    plan: Plan, runner: SGLangRunner, *, is_dcp: bool, speculation: Speculation
) -> Iterator[str]:
    """List why a backend cannot serve here: what it declares, and what is not bridged."""
    problems = {
        f"it takes {reason.fact} {reason.needed}; here it is {reason.actual}"
        for use in plan.uses
        for reason in misfits_of(use, plan)
    }
    yield from sorted(problems)
    for problem in problems_of_values(plan):
        if problem.needed is not None:
            yield problem.message.removesuffix(".")
    algorithm = plan.flags.speculative_algorithm
    unbridged = {
        f"--speculative-algorithm {algorithm} is not bridged; {', '.join(SPECULATION)} are": (
            algorithm is not None and algorithm not in SPECULATION
        ),
        "--speculative-adaptive changes backends while the server runs, which is not bridged": (
            speculation.is_adaptive
        ),
        "--enable-multi-layer-eagle is not bridged": speculation.has_layers,
        f"trees of drafts over pages of {runner.page_size} tokens are not bridged": (
            speculation.topk > 1 and runner.page_size > 1
        ),
        "decode context parallelism merges by log-sum-exp, which is not bridged": is_dcp,
        "the model's sliding windows are not bridged": runner.sliding_window_size is not None,
        "encoder-decoder models are not bridged": runner.model_config.is_encoder_decoder,
        "a KV cache whose slots are translated is not bridged": (
            runner.kv_index_translator.is_translating
        ),
    }
    yield from (reason for reason, holds in unbridged.items() if holds)


def reasons_of_layer(layer: SGLangLayer) -> Iterator[str]:
    """List what a layer asks for that a backend of backend-caps does not receive."""
    unbridged = {
        f"its logits are capped at {layer.logit_cap}": bool(layer.logit_cap),
        f"it has a sliding window of {layer.sliding_window_size}": layer.sliding_window_size > -1,
        "it attends to an encoder's output": layer.is_cross_attention,
        "its temperature follows the position": layer.xai_temperature_len > 0,
        "its cache has scales": layer.k_scale is not None or layer.v_scale is not None,
        f"its attention is {layer.attn_type.name}": layer.attn_type.name != "DECODER",
    }
    yield from (reason for reason, holds in unbridged.items() if holds)
