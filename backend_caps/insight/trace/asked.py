"""What is recorded: a plan's engine, in the middle of its requests' decode steps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from backend_caps.capability.kind import Phase, Role
from backend_caps.insight.dry_run import RunPlan, ServerSizes, Sizes, dry_start
from backend_caps.insight.dry_run.running import fitting_models
from backend_caps.insight.dry_run.spending import NAMES
from backend_caps.insight.trace.errors import TooManyStepsError
from backend_caps.insight.trace.regions import RegionObserver
from backend_caps.resolution.plan import Plan
from backend_caps.runtime.engine import Engine
from backend_caps.runtime.graphs import GraphMode
from backend_caps.runtime.request import Sampling
from backend_caps.runtime.speculative.settings import SpecSettings
from backend_caps.simulator import Simulation

BATCH_SIZE = 4
"""Requests of every step, where as many run at once."""
SETTLING = 6
"""Steps before the first that is shown: one of prompts, then until each has one before it."""
_PROMPT = 4
_NUM_LAYERS = 6
"""Of the target, beside the one of what drafts for it: a graph that the host's launches can hide
behind. A server's target has more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What to record."""

    run: RunPlan
    server: ServerSizes
    device: str
    num_steps: int
    seed: int


class Forwards:
    """Name what is launched within a forward by its role and phase.

    Args:
        regions: is told.
    """

    def __init__(self, regions: RegionObserver) -> None:
        self._regions = regions

    def began(self, role: Role, phase: Phase) -> None:
        """Take in that a forward begins."""
        self._regions.enter(NAMES.get((role, phase), f"{role.value} {phase.value}"))

    def ended(self, graph_mode: GraphMode) -> None:  # noqa: ARG002 - its operators say so
        """Take in that it was enqueued."""
        self._regions.leave()


@contextmanager
def started(asked: Asked, simulation: Simulation | None = None) -> Iterator[Engine]:
    """Make an engine whose requests wait for their prompts to run, for a `with` block.

    Raises:
        DryStartError: it cannot be made.
        TooManyStepsError: its requests are shorter than the steps.
    """
    run = asked.run
    sizes = Sizes.of(run.plan, asked.server)
    endless = _endless(run.plan, sizes, asked.num_steps)
    with (
        fitting_models(run.plan, sizes, seed=asked.seed, num_layers=_NUM_LAYERS) as models,
        dry_start(run, asked.server, asked.device, models=models, simulation=simulation) as own,
    ):
        for number in range(min(BATCH_SIZE, sizes.max_running_requests)):
            own.engine.submit([number + place for place in range(_PROMPT)], endless)
        yield own.engine


def _endless(plan: Plan, sizes: Sizes, num_steps: int) -> Sampling:
    """Make requests so long that none of the steps ends one."""
    settings = SpecSettings.from_flags(plan.flags)
    accepts = 1 if settings is None else settings.accept_tokens
    num_new = sizes.context_length - _PROMPT
    most = num_new // accepts - SETTLING - 2
    if num_steps > most:
        raise TooManyStepsError(asked=num_steps, most=most, context_length=sizes.context_length)
    return Sampling(max_new_tokens=num_new, stop_token_ids=frozenset())
