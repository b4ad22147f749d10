"""What a generation runs with: models, a configuration, prompts and room for them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from heapq import nlargest
from pathlib import Path

import click
import torch

from backend_caps.discovery.registry import Registry
from backend_caps.insight.errors import InsightError
from backend_caps.kit.models import SmallModels, small_models
from backend_caps.resolution.flags import ServerFlags
from backend_caps.resolution.plan import Plan, Policy
from backend_caps.runtime.memory import FULL_CONTEXTS, num_pages_of
from backend_caps.runtime.model.config import LlamaConfig
from backend_caps.runtime.options import EngineOptions, page_size_of
from backend_caps.runtime.request import Sampling
from backend_caps.runtime.speculation import SpecSettings
from backend_caps.startup.configuration import Configuration

_SHORTEST, _LONGEST = 3, 24
"""Tokens of made-up prompts."""
_COMPUTED = ("bfloat16", "float32")


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """What to run, under which flags, and on what."""

    configure: Callable[..., Configuration]
    """`configure_engine` for one device, registry, rules and facts."""
    flags: ServerFlags
    policy: Policy
    registry: Registry
    model: Path | None
    """A folder; None makes a small model."""
    draft_model: Path | None
    """A folder; None where no model drafts, or a small one is made with the small model."""
    token_ids: tuple[tuple[int, ...], ...]
    """The prompts; where there are none, `num_prompts` are made up."""
    num_prompts: int
    schedule: str | None
    """The order in which the simulated device runs its work; None on any other."""
    sampling: Sampling
    options: EngineOptions
    num_steps: int
    """Steps to show."""
    compares_plain: bool
    """Whether the prompts run again by the plain loop."""
    shows_metrics: bool
    metrics_port: int | None
    """Where metrics are served; None is nowhere."""


@contextmanager
def models_of(generation: Generation) -> Iterator[SmallModels]:
    """Find the models that were named, or make small ones for as long as a `with` block runs."""
    if generation.model is not None:
        yield SmallModels(target=generation.model, draft=generation.draft_model)
        return
    settings = SpecSettings.from_flags(generation.flags)
    algorithm = None if settings is None else settings.algorithm
    with small_models(algorithm, seed=generation.sampling.seed) as models:
        yield models


def configured(generation: Generation, models: SmallModels, config: LlamaConfig) -> Configuration:
    """Configure the engine, and warn of a plan with problems.

    Raises:
        InsightError: the model's dtype is not computed in, and no other was named.
        BackendCapsError: model, device or plan are refused.
    """
    dtype = generation.options.dtype or getattr(torch, _dtype_of(config))
    # Python writes to standard error what is logged while nothing handles it.
    log, nowhere = logging.getLogger("backend_caps"), logging.NullHandler()
    log.addHandler(nowhere)
    try:
        configuration = configuration_of(
            generation, models, replace(generation.options, dtype=dtype)
        )
    finally:
        log.removeHandler(nowhere)
    plan = configuration.plan
    if plan.problems and plan.policy is not Policy.QUIET:
        many = "problem" if len(plan.problems) == 1 else "problems"
        click.echo(
            f"warning: the plan has {len(plan.problems)} {many}; --policy strict names them",
            err=True,
        )
    return configuration


def configuration_of(
    generation: Generation, models: SmallModels, options: EngineOptions
) -> Configuration:
    """Configure an engine for a generation's flags, with these models and options."""
    return generation.configure(
        generation.flags,
        models.target,
        draft_model_path=models.draft,
        options=options,
        policy=generation.policy,
    )


def _dtype_of(config: LlamaConfig) -> str:
    """Return the model's dtype, which is never converted by itself: other tokens come of that."""
    dtype = config.dtype or "float32"
    if dtype not in _COMPUTED:
        first, other = _COMPUTED
        raise InsightError(
            "model-dtype",
            f"the model's dtype is {dtype!r}; {first!r} or {other!r} was expected, which the "
            f"engine computes in. Add --dtype {first}, or --dtype {other} for twice the memory "
            f"and more exact numbers: the weights are converted.",
        )
    return dtype


def made_up_prompts(generation: Generation, config: LlamaConfig) -> Sequence[Sequence[int]]:
    """Draw prompts of mixed lengths from the model's vocabulary."""
    generator = torch.Generator().manual_seed(generation.sampling.seed)
    lengths = torch.randint(_SHORTEST, _LONGEST + 1, (generation.num_prompts,), generator=generator)
    return [
        torch.randint(config.vocab_size, (length,), generator=generator).tolist()
        for length in lengths.tolist()
    ]


def options_with_room(
    generation: Generation, prompts: Sequence[Sequence[int]], config: LlamaConfig, plan: Plan
) -> EngineOptions:
    """Size the KV cache for the longest requests that can run at once, unless it is given.

    Speculative steps write behind a request's end.
    """
    options = generation.options
    if options.max_total_tokens is not None:
        return options
    settings, page_size = SpecSettings.from_flags(plan.flags), page_size_of(plan)
    behind = 0 if settings is None else settings.lookahead
    context = plan.flags.context_length or config.max_position_embeddings
    lengths = (len(prompt) + generation.sampling.max_new_tokens + behind for prompt in prompts)
    longest = nlargest(options.max_running_requests, lengths)
    num_pages = sum(num_pages_of(length, page_size) for length in longest)
    most = FULL_CONTEXTS * num_pages_of(context + behind, page_size)
    return replace(options, max_total_tokens=min(num_pages, most) * page_size)
