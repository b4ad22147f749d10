"""What `backend-caps generate` runs: a model, the plan for it, prompts, and room for them."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from heapq import nlargest
from pathlib import Path
from typing import Self

import click
import torch

from backend_caps.cli.asked import Asked
from backend_caps.cli.options import Request as CommandRequest
from backend_caps.discovery.registry import Registry
from backend_caps.errors import BackendCapsError
from backend_caps.kit.models import SmallModels, small_models
from backend_caps.relay.streams import declared_traits
from backend_caps.resolution.flags import ServerFlags
from backend_caps.resolution.plan import Plan, Policy
from backend_caps.runtime.configuration import configure_engine
from backend_caps.runtime.memory import num_pages_of
from backend_caps.runtime.model import LlamaConfig
from backend_caps.runtime.options import EngineOptions, page_size_of
from backend_caps.runtime.pools import FULL_CONTEXTS
from backend_caps.runtime.speculative.settings import SpecSettings
from backend_caps.startup.configuration import Configuration

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

    models: SmallModels
    """The model's folder, and that of what drafts for it."""
    configuration: Configuration
    """What the engine serves with."""
    prompts: Sequence[Sequence[int]]
    options: EngineOptions
    has_streams: bool
    """Whether the device works beside the host."""

    @classmethod
    def configured(
        cls, asked: Asked, request: CommandRequest, registry: Registry, models: SmallModels
    ) -> Self:
        """Configure an engine for a model, make prompts up where none are given, and make room.

        Raises:
            ModelDtypeError: the model's dtype is not computed in, and no other was named.
            BackendCapsError: model, device or plan are refused.
        """
        config = LlamaConfig.from_folder(models.target)
        dtype = _dtype(asked, config)
        configuration = _configuration(asked, request, registry, models, dtype)
        plan = configuration.plan
        prompts = asked.token_ids or _made_up(asked, config)
        context = plan.flags.context_length or config.max_position_embeddings
        room = asked.options.max_total_tokens or _room(asked, prompts, context, plan)
        return cls(
            models=models,
            configuration=configuration,
            prompts=prompts,
            options=replace(asked.options, max_total_tokens=room),
            has_streams=declared_traits(torch.device(asked.device)).has_streams,
        )


@contextmanager
def models_of(asked: Asked, flags: ServerFlags) -> Iterator[SmallModels]:
    """Find the models that were named, or make small ones for as long as a `with` block runs.

    Raises:
        SpeculationError: the flags name an algorithm that the engine does not have.
    """
    if asked.model is not None:
        yield SmallModels(target=asked.model, draft=asked.draft_model)
        return
    settings = SpecSettings.from_flags(flags)
    algorithm = None if settings is None else settings.algorithm
    with small_models(algorithm, seed=asked.sampling.seed) as models:
        yield models


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


def _configuration(
    asked: Asked, request: CommandRequest, registry: Registry, models: SmallModels, dtype: str
) -> Configuration:
    """Configure the engine; what the command line says of the model goes before its config."""
    with _unlogged():
        configuration = configure_engine(
            request.flags,
            models.target,
            device=asked.device,
            draft_model_path=models.draft,
            options=replace(asked.options, dtype=getattr(torch, dtype)),
            facts=request.facts,
            registry=registry,
            rules=request.rules,
            policy=request.policy,
            unsafe_override=request.override,
        )
    plan = configuration.plan
    if plan.problems and plan.policy is not Policy.QUIET:
        many = "problem" if len(plan.problems) == 1 else "problems"
        told = f"the plan has {len(plan.problems)} {many}; --policy strict names them"
        click.echo(f"warning: {told}", err=True)
    return configuration


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


def _room(asked: Asked, prompts: Sequence[Sequence[int]], context: int, plan: Plan) -> int:
    """Count the tokens of the KV cache that the longest requests fill which can run at once.

    Speculative steps write behind a request's end.
    """
    settings, page_size = SpecSettings.from_flags(plan.flags), page_size_of(plan)
    behind = 0 if settings is None else settings.lookahead
    lengths = (len(prompt) + asked.sampling.max_new_tokens + behind for prompt in prompts)
    longest = nlargest(asked.options.max_running_requests, lengths)
    num_pages = sum(num_pages_of(length, page_size) for length in longest)
    return min(num_pages, FULL_CONTEXTS * num_pages_of(context + behind, page_size)) * page_size
