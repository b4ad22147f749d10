"""What `backend-caps generate` was asked: the prompts, the device and the engine's options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Self

import click
import torch

from backend_caps.runtime.options import EngineOptions
from backend_caps.runtime.request import Sampling

_PROMPTS = 4
_DTYPES: Mapping[str, torch.dtype | None] = MappingProxyType(
    {"auto": None, "float32": torch.float32, "bfloat16": torch.bfloat16}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What to run, and on what."""

    model: Path | None
    """A folder; None makes a small model."""
    draft_model: Path | None
    """A folder; None where no model drafts, or a small one is made with the small model."""
    token_ids: tuple[tuple[int, ...], ...]
    """The prompts; where there are none, `num_prompts` are made up."""
    num_prompts: int
    device: str
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

    @classmethod
    def from_context(cls, ctx: click.Context) -> Self:
        """Read what the command line says."""
        options = ctx.params
        return cls(
            model=options["model"],
            draft_model=options["draft_model"],
            token_ids=options["token_ids"],
            num_prompts=options["prompts"] or _PROMPTS,
            device=options["device"],
            schedule=options["schedule"],
            sampling=Sampling(
                max_new_tokens=options["max_new_tokens"],
                temperature=options["temperature"],
                seed=options["seed"],
            ),
            options=EngineOptions(
                max_running_requests=options["max_running_requests"],
                max_total_tokens=options["max_total_tokens"],
                max_prefill_tokens=options["max_prefill_tokens"],
                chunked_prefill_size=options["chunked_prefill_size"],
                dtype=_DTYPES[options["dtype"]],
                graph_batch_sizes=options["graph_batch_sizes"],
                graph_token_counts=options["graph_token_counts"],
            ),
            num_steps=options["steps"],
            compares_plain=options["compare_plain"],
            shows_metrics=options["metrics"],
            metrics_port=options["metrics_port"],
        )
