"""From a plan to what its mirror costs a step, counted. Loads torch."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from backend_caps.capability.vocabulary import HostSeqLens
from backend_caps.cli.job import importable
from backend_caps.cli.options import Request
from backend_caps.insight.measure import (
    LeftOut,
    Levels,
    NotMeasuredError,
    SteadySteps,
    measured_levels,
)
from backend_caps.report.documents import PlanDocument
from backend_caps.report.measure_documents import (
    DraftsDocument,
    LeftOutDocument,
    LevelDocument,
    MeasuredDocument,
    MeasureDocument,
    TimeDocument,
)
from backend_caps.report.measure_results import stored_times
from backend_caps.resolution.plan import Plan
from backend_caps.runtime.speculative.settings import SpecSettings
from backend_caps.simulator import DEVICE_NAME


def measure_document(
    plan: Plan, document: PlanDocument, request: Request, results: Path | None
) -> MeasureDocument:
    """Run the plan's configuration, and write down what its steps cost, or why it cannot run.

    Raises:
        GpuResultError: a file among the results is none.
    """
    gc.enable()  # the program switched it off, for commands that end before it would matter
    times = stored_times(results)
    measured, problem = None, None
    with importable(request.path):
        try:
            levels = measured_levels(plan)
            measured = _measured(levels, drafts_document(plan), times)
        except NotMeasuredError as error:
            problem = str(error)
    return MeasureDocument(
        schema_="backend-caps/measure@1", plan=document, measured=measured, problem=problem
    )


def drafts_document(plan: Plan) -> DraftsDocument | None:
    """Write down how a plan's steps speculate."""
    settings = SpecSettings.from_flags(plan.flags)
    if settings is None:
        return None
    return DraftsDocument(
        algorithm=settings.algorithm.value,
        topk=settings.topk,
        num_steps=settings.num_steps,
        num_draft_tokens=settings.num_draft_tokens,
    )


def left_out_documents(left_out: Iterable[LeftOut]) -> list[LeftOutDocument]:
    """Write down which levels were not run."""
    return [LeftOutDocument(level=own.level.value, reason=own.reason) for own in left_out]


def _measured(
    levels: Levels, drafts: DraftsDocument | None, times: list[TimeDocument]
) -> MeasuredDocument:
    own = levels.measured[levels.own]
    return MeasuredDocument(
        device=DEVICE_NAME,
        batch_size=own.batch_size,
        num_steps=own.num_steps,
        pool_size=own.pool_size,
        drafts=drafts,
        replayed=own.num_replayed == own.num_steps,
        tokens_made=own.num_made / (own.num_steps * own.batch_size),
        levels=[
            _level(level, levels.measured[level], is_planned=level is levels.own)
            for level in HostSeqLens
            if level in levels.measured
        ],
        left_out=left_out_documents(levels.left_out),
        times=times,
    )


def _level(level: HostSeqLens, steps: SteadySteps, *, is_planned: bool) -> LevelDocument:
    counts, num_steps = steps.counts, steps.num_steps
    return LevelDocument(
        level=level.value,
        is_planned=is_planned,
        host_waits=counts.num_host_waits / num_steps,
        waits_for_lengths=steps.num_waits_for_lengths / num_steps,
        bytes_to_host=counts.bytes_to_host / num_steps,
        bytes_of_lengths=steps.bytes_of_lengths / num_steps,
        bytes_to_device=counts.bytes_to_device / num_steps,
        event_waits=counts.num_event_waits / num_steps,
        launches=counts.num_ops / num_steps,
        hidden_syncs=dict(Counter(steps.hidden_syncs)),
    )
