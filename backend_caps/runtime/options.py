"""What an engine is made with: its options, and what it takes from a plan's flags."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial

import torch

from backend_caps.capability.facts import CHECKED_AGAINST, Facts
from backend_caps.capability.kind import Phase, Role
from backend_caps.capability.model import AUTO
from backend_caps.capability.sets import Conflict, Exact, MultipleOf, OneOf
from backend_caps.capability.vocabulary import AttentionArch, HostSeqLens
from backend_caps.relay.streams import DeviceStreams
from backend_caps.resolution.flags import ServerFlags
from backend_caps.resolution.plan import Plan, Policy
from backend_caps.resolution.resolver import cause_of_use, resolve
from backend_caps.runtime.errors import EngineError, UnfitBackendError, check_size
from backend_caps.runtime.model.config import LlamaConfig
from backend_caps.runtime.model.llama import LlamaModel
from backend_caps.runtime.speculation import SpecSettings
from backend_caps.startup.graph_choice import GraphSizes
from backend_caps.startup.graph_modes import mixed_buckets, uniform_buckets

_SIZES = (
    *("max_running_requests", "max_total_tokens", "max_prefill_tokens"),
    *("chunked_prefill_size", "max_graph_batch_size"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """What the plan does not say: how much room there is, and how steps are cut.

    Raises:
        EngineError: `pool-shape`: a number is below 1.
    """

    max_running_requests: int = 64
    """Rows of the request pool, row 0 aside."""
    max_total_tokens: int | None = None
    """Tokens that the KV cache holds; None is room for 8 full contexts."""
    max_prefill_tokens: int = 8192
    """The most prompt tokens of a step; a longer prompt has a step of its own."""
    chunked_prefill_size: int | None = None
    """Cut prompts so that no step has more prompt tokens; None runs every prompt whole."""
    dtype: torch.dtype | None = None
    """What the model computes in; None is what its folder says."""
    graph_batch_sizes: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    """Batch sizes of decode that graphs are captured for; a batch is padded to the next one. With
    any of them, `max_graph_batch_size` is one too; none captures nothing."""
    max_graph_batch_size: int | None = None
    """The largest batch of decode that a graph is captured for; larger ones run eagerly. None is
    `max_running_requests`, so that every batch replays."""
    pads_graphs: bool = True
    """Whether a batch of decode is padded to a captured size; else one of another size runs
    eagerly."""
    graph_token_counts: tuple[int, ...] = ()
    """Numbers of tokens that graphs are captured for: full ones of prefill, and pieces of whatever
    has no full ones. None runs prefill eagerly, and nothing in pieces; none may be above the
    largest step."""

    def __post_init__(self) -> None:
        for name in _SIZES:
            if (size := getattr(self, name)) is not None:
                check_size(name, size)


def graph_sizes_of(
    options: EngineOptions, speculation: SpecSettings | None = None
) -> Mapping[Role, GraphSizes]:
    """List the sizes of graphs that the options name, by role, up to the largest batch.

    They are those of full graphs, also where `choose_graphs` finds something else that keeps a
    phase from them: its sizes are named all the same. A draft model's batch sizes are those of
    decode; with one step, nothing is drafted beyond what draft-extend leaves.
    """
    rows, named = options.max_running_requests, options.graph_batch_sizes
    most = min(rows, options.max_graph_batch_size or rows)
    batch_sizes = (*(size for size in named if size < most), most) if named else ()
    uniform = partial(uniform_buckets, batch_sizes, pads=options.pads_graphs)
    mixed = mixed_buckets(rows, options.graph_token_counts)
    buckets = {Phase.DECODE: uniform(), Phase.PREFILL: mixed}
    if speculation is not None:
        buckets[Phase.VERIFY] = uniform(speculation.num_draft_tokens)
    sizes = {Role.TARGET: GraphSizes(buckets=buckets, token_counts=options.graph_token_counts)}
    if speculation is None or not speculation.has_draft_model:
        return sizes
    steps = uniform(speculation.topk) if speculation.num_steps > 1 else ()
    accepted = uniform(speculation.accept_tokens)
    return {
        **sizes,
        Role.DRAFT: GraphSizes(buckets={Phase.DECODE: steps}),
        Role.DRAFT_EXTEND: GraphSizes(buckets={Phase.VERIFY: accepted}),
    }


def check_token_counts(
    plan: Plan, options: EngineOptions, speculation: SpecSettings | None, max_context_len: int
) -> None:
    """Refuse graphs of more tokens than any step has: they would take memory for nothing.

    Raises:
        EngineError: `graph-token-count`: a number is above the largest step's.
    """
    mixed = plan.flags.enable_mixed_chunk
    largest = largest_step(options, max_context_len, speculation, mixed=mixed)
    most = max(options.graph_token_counts, default=0)
    if most > largest:
        raise EngineError(
            "graph-token-count",
            f"graph_token_counts has {most}; at most {largest} was expected, the tokens of the "
            f"largest step that the options and the context allow. Name {largest} for all that "
            f"can be, or fewer.",
        )


def largest_step(
    options: EngineOptions,
    max_context_len: int,
    speculation: SpecSettings | None = None,
    *,
    mixed: bool = False,
) -> int:
    """Count the tokens of the largest forward of the target that a step can have.

    Args:
        options: how many requests and prompt tokens a step takes.
        max_context_len: the longest prompt; one that is not cut has a step of its own.
        speculation: how many tokens a verify has.
        mixed: whether decode rows, a token each, join steps of prompts.
    """
    rows, chunk = options.max_running_requests, options.chunked_prefill_size
    budget = options.max_prefill_tokens
    budget = max(budget, max_context_len) if chunk is None else min(budget, chunk)
    prompts = min(budget, rows * max_context_len) + (rows - 1 if mixed else 0)
    tokens_each = 1 if speculation is None else speculation.num_draft_tokens
    return max(prompts, rows * tokens_each)


DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
"""Dtypes of keys and values that `--kv-cache-dtype` may name."""


_FEATURES: Mapping[str, re.Pattern[str]] = {
    "prefix caching": re.compile(r"hicache|hierarchical-cache|lmcache|radix"),
    "LoRA": re.compile(r"lora"),
    "multimodal input": re.compile(r"-mm-|multimodal|image"),
    "grammars": re.compile(r"grammar|constrained-json"),
    "quantised weights": re.compile(r"quantiz|-quant$|torchao"),
}
"""What a server may do that this engine does not, by the words of the flags that ask for it."""


def features_of(flags: ServerFlags) -> Mapping[str, str]:
    """List the flags of features that this engine does not have, each with the feature.

    A flag that switches one off asks for what this engine does, and is none of them.
    """
    return {
        flag: feature
        for flag in flags.unrelated
        for feature, words in _FEATURES.items()
        if words.search(flag) and not flag.startswith("--disable-")
    }


def check_flags(flags: ServerFlags) -> None:
    """Refuse flags of a server that this engine is not.

    Raises:
        EngineError: `flags`: names them all.
    """
    kv_cache_dtype = flags.kv_cache_dtype
    asked = {
        "--enable-dp-attention": flags.enable_dp_attention,
        "--enable-kv-cache-sharding": flags.enable_kv_cache_sharding,
        "--enable-deterministic-inference": flags.enable_deterministic_inference,
        f"--kv-cache-dtype {kv_cache_dtype}": kv_cache_dtype not in (AUTO, *DTYPES),
        f"--tp-size {flags.tp_size}": flags.tp_size > 1,
        f"--pp-size {flags.pp_size}": flags.pp_size > 1,
        f"--dp-size {flags.dp_size}": flags.dp_size > 1,
    }
    features = (f"{flag} ({feature})" for flag, feature in features_of(flags).items())
    unserved = (*(flag for flag, is_asked in asked.items() if is_asked), *features)
    if unserved:
        raise EngineError(
            "flags",
            f"the plan was resolved with {', '.join(unserved)}, which this engine does not do; "
            f"flags of one process that decodes text, with a KV cache of bfloat16, float16 or "
            f"float32, were expected. Resolve a plan without them.",
        )


def _unsupported(fact: str) -> str:
    """Return the code of a problem with a fact."""
    return f"{fact.replace('_', '-')}-unsupported"


MISFITS = frozenset(map(_unsupported, (*CHECKED_AGAINST.values(), "speculative_topk")))
"""The codes of problems with which no engine starts."""


def check_fit(
    plan: Plan, model: LlamaModel, streams: DeviceStreams, draft: LlamaConfig | None = None
) -> None:
    """Refuse a plan whose backends do not take what the engine has found out.

    A stand-in for a device is no device that a backend could know. What is overridden is not
    asked for.

    Args:
        plan: the engine's.
        model: the target.
        streams: the device's.
        draft: the shape of what drafts; None: the target's backends alone are asked.

    Raises:
        EngineError: `context-length`: the flags ask for more than the model was made for;
            `page-size`: no page size serves every backend.
        UnfitBackendError: a backend declares that it does not take the model, device or page size.
    """
    config, context = model.config, plan.flags.context_length
    if context is not None and context > config.max_position_embeddings:
        raise EngineError(
            "context-length",
            f"--context-length is {context}; at most the model's {config.max_position_embeddings} "
            f"was expected. Lower it, or correct max_position_embeddings in the model's "
            f"config.json.",
        )
    found = {
        "dtype": str(model.dtype),
        "attention_arch": AttentionArch.MHA,  # a Llama's
        "page_size": page_size_of(plan),
        "device": None if streams.traits.is_stand_in else streams.device.type,
    }
    misfits = list(_misfits(plan, {Role.TARGET}, config, found))
    if draft is not None:
        misfits += _misfits(plan, {Role.DRAFT, Role.DRAFT_EXTEND}, draft, found)
    misfits += _blind_in_mixed_steps(plan)
    if misfits:
        raise UnfitBackendError(problems=tuple(dict.fromkeys(misfits)))


def _blind_in_mixed_steps(plan: Plan) -> Iterator[str]:
    """Say whose prefill would get rows of which the host knows too little.

    A prompt's lengths are the scheduler's, so a plan asks no prefill backend what it reads. With
    speculation a mixed step has rows of which the relay alone has the lengths.
    """
    if not (plan.flags.enable_mixed_chunk and plan.relays_speculation):
        return
    situation = plan.flags.situation(plan.facts)
    for use in plan.uses:
        cause = cause_of_use(use, "host_seq_lens", situation)
        if use.phase is not Phase.PREFILL or cause is None:
            continue
        needed = cause.value
        assert isinstance(needed, HostSeqLens), "a use's level is one of the scale"
        if plan.host_seq_lens < needed:
            yield (
                f"backend {use.backend!r} runs mixed steps with speculative rows and needs "
                f"host_seq_lens {needed.value!r}; the plan has {plan.host_seq_lens.value!r}."
            )


def _misfits(
    plan: Plan, roles: AbstractSet[Role], config: LlamaConfig, found: Mapping[str, object]
) -> Iterator[str]:
    """Say what the backends of some roles do not take of a model, and what to do about it."""
    facts = Facts.model_validate({**plan.facts.known(), **found, "head_size": config.head_dim})
    uses = tuple(use for use in plan.uses if use.role in roles)
    known = resolve(uses, plan.flags, rules=plan.rules, facts=facts, policy=Policy.QUIET)
    overridden = {
        _unsupported(CHECKED_AGAINST[name]) for name, _ in plan.overrides if name in CHECKED_AGAINST
    }
    refused = MISFITS - overridden
    for problem in known.problems:
        if problem.code in refused:
            yield f"{problem.message} {problem.remedy}"


def page_size_of(plan: Plan) -> int:
    """Return the flags' page size, or the smallest that every backend takes.

    Raises:
        EngineError: `page-size`: there is none.
    """
    if plan.flags.page_size is not None:
        return plan.flags.page_size
    match plan["page_sizes"].value:
        case Exact(size) | MultipleOf(size):
            return size
        case OneOf(sizes):
            return min(sizes)
        case Conflict() as conflict:
            raise EngineError(
                "page-size",
                f"no page size suits every backend: {conflict}; one that they share was expected. "
                f"Name other backends, or give --page-size where one of them says too little.",
            )
        case _:  # any, or undeclared
            return 1
