"""What `backend-caps generate` runs: a model, the plan for it, prompts, and room for them."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from heapq import nlargest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

import click
import torch

from backend_caps.capability.facts import Facts
from backend_caps.capability.vocabulary import AttentionArch
from backend_caps.cli.asked import Asked
from backend_caps.cli.options import Request as CommandRequest
from backend_caps.discovery.registry import Registry
from backend_caps.errors import BackendCapsError
from backend_caps.relay.streams import declared_traits
from backend_caps.resolution.flags import ServerFlags
from backend_caps.resolution.plan import Plan, Policy
from backend_caps.runtime.memory import num_pages_of
from backend_caps.runtime.model import LlamaConfig, random_llama
from backend_caps.runtime.options import EngineOptions, page_size_of
from backend_caps.runtime.pools import FULL_CONTEXTS
from backend_caps.startup.configure import configure

_SHORTEST, _LONGEST = 3, 24
"""Tokens of made-up prompts."""
_COMPUTED = ("bfloat16", "float32")


@dataclass(eq=False, kw_only=True)
class ModelDtypeError(BackendCapsError):
    """A model's weights are of a dtype that the engine does not compute in.

    It is refused rather than converted: which bits may go is the operator's to say, because other
    tokens come of it.
    """

    dtype: str

    @property
    def message(self) -> str:
        """The dtype, and the option that chooses another."""
        first, other = _COMPUTED
        return (
            f"the model's dtype is {self.dtype!r}; {first!r} or {other!r} was expected, which the "
            f"engine computes in. Add --dtype {first}, or --dtype {other} for twice the memory "
            f"and more exact numbers: the weights are converted."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A model's folder, and how an engine is to run prompts with it."""

    folder: Path
    plan: Plan
    prompts: Sequence[Sequence[int]]
    options: EngineOptions
    has_streams: bool
    """Whether the device works beside the host."""

    @classmethod
    def planned(
        cls, asked: Asked, request: CommandRequest, registry: Registry, folder: Path
    ) -> Self:
        """Resolve the plan for a model, make prompts up where none are given, and make room.

        Raises:
            ModelDtypeError: the model's dtype is not computed in, and no other was named.
            BackendCapsError: model, device or plan are refused.
        """
        config = LlamaConfig.from_folder(folder)
        dtype = _dtype(asked, config)
        plan = _plan(asked, request, registry, _facts(request.flags, config, dtype))
        prompts = asked.token_ids or _made_up(asked, config)
        context = plan.flags.context_length or config.max_position_embeddings
        room = asked.options.max_total_tokens or _room(asked, prompts, context, page_size_of(plan))
        return cls(
            folder=folder,
            plan=plan,
            prompts=prompts,
            options=replace(asked.options, max_total_tokens=room),
            has_streams=declared_traits(torch.device(asked.device)).has_streams,
        )


@contextmanager
def random_model(seed: int) -> Iterator[Path]:
    """Make a model for as long as a `with` block runs; so small that threads only cost it time."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with TemporaryDirectory(prefix="backend-caps-") as folder:
            random_llama(folder, seed=seed)
            yield Path(folder)
    finally:
        torch.set_num_threads(num_threads)


@contextmanager
def importable(folders: Sequence[Path]) -> Iterator[None]:
    """Import from folders first within a `with` block: what they declare is there."""
    paths = [str(folder.absolute()) for folder in folders]
    sys.path[:0] = paths
    try:
        yield
    finally:
        for path in paths:
            sys.path.remove(path)


def _dtype(asked: Asked, config: LlamaConfig) -> str:
    if asked.options.dtype is not None:
        return str(asked.options.dtype).removeprefix("torch.")
    dtype = config.dtype or "float32"
    if dtype not in _COMPUTED:
        raise ModelDtypeError(dtype=dtype)
    return dtype


def _facts(flags: ServerFlags, config: LlamaConfig, dtype: str) -> Mapping[str, object]:
    return {
        "dtype": dtype,
        "kv_cache_dtype": dtype if flags.kv_cache_dtype == "auto" else flags.kv_cache_dtype,
        "head_size": config.head_dim,
        "attention_arch": AttentionArch.MHA,
        "context_length": flags.context_length or config.max_position_embeddings,
    }


def _plan(
    asked: Asked, request: CommandRequest, registry: Registry, facts: Mapping[str, object]
) -> Plan:
    """Resolve with what the model's config says; what was said on the command line goes before."""
    with _unlogged():
        plan, _ = configure(
            request.flags,
            pool_size=asked.options.max_running_requests + 1,
            device=asked.device,
            facts=Facts.model_validate({**facts, **request.facts.known()}),
            registry=registry,
            rules=request.rules,
            policy=request.policy,
            unsafe_override=request.override,
        )
    if plan.problems and plan.policy is not Policy.QUIET:
        many = "problem" if len(plan.problems) == 1 else "problems"
        told = f"the plan has {len(plan.problems)} {many}; --policy strict names them"
        click.echo(f"warning: {told}", err=True)
    return plan


@contextmanager
def _unlogged() -> Iterator[None]:
    """Keep what is logged from standard error, where Python writes it if nobody listens."""
    log, nowhere = logging.getLogger("backend_caps"), logging.NullHandler()
    log.addHandler(nowhere)
    try:
        yield
    finally:
        log.removeHandler(nowhere)


def _made_up(asked: Asked, config: LlamaConfig) -> Sequence[Sequence[int]]:
    """Draw prompts of mixed lengths from the model's vocabulary."""
    generator = torch.Generator().manual_seed(asked.sampling.seed)
    lengths = torch.randint(_SHORTEST, _LONGEST + 1, (asked.num_prompts,), generator=generator)
    return [
        torch.randint(config.vocab_size, (length,), generator=generator).tolist()
        for length in lengths.tolist()
    ]


def _room(asked: Asked, prompts: Sequence[Sequence[int]], context: int, page_size: int) -> int:
    """Count the tokens of the KV cache that the longest requests fill which can run at once."""
    lengths = (len(prompt) + asked.sampling.max_new_tokens for prompt in prompts)
    longest = nlargest(asked.options.max_running_requests, lengths)
    num_pages = sum(num_pages_of(length, page_size) for length in longest)
    return min(num_pages, FULL_CONTEXTS * num_pages_of(context, page_size)) * page_size
