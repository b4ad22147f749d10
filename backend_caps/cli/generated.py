"""From an engine and what it did to the parts of a document."""

from __future__ import annotations

from collections.abc import Sequence

from backend_caps.capability.kind import Phase, Role
from backend_caps.cli.measure import drafts_document
from backend_caps.report.generate_documents import (
    GenerateStepDocument,
    OutputDocument,
    RunDocument,
    SpeculationDocument,
)
from backend_caps.runtime.batch import ForwardMode
from backend_caps.runtime.engine import Engine
from backend_caps.runtime.observers import StepTotals
from backend_caps.runtime.request import Request
from backend_caps.runtime.stats import StepStats

_US = 1e6


def step_document(number: int, stats: StepStats, *, has_streams: bool) -> GenerateStepDocument:
    """Write one step down."""
    clock = stats.clock
    return GenerateStepDocument(
        number=number,
        mode=stats.mode.value,
        graph_mode=stats.graph_mode.value,
        num_requests=stats.num_requests,
        num_tokens=stats.num_tokens,
        num_made=stats.num_made,
        total_seq_lens=stats.total_seq_lens,
        waits_for_lengths=stats.waits_for_lengths,
        bytes_to_host=stats.bytes_to_host if has_streams else None,
        bytes_to_device=stats.bytes_to_device if has_streams else None,
        host_us=stats.host_s * _US,
        model_us=(clock.model_done_s - clock.model_s) * _US,
        wait_us=stats.wait_s * _US if has_streams else None,
        accept_lens=[*stats.accept_lens] or None,
    )


def run_document(
    engine: Engine, requests: Sequence[Request], totals: StepTotals, seconds: float
) -> RunDocument:
    """Write all steps down, together."""
    num_steps = totals.num_steps.total()
    has_streams = engine.streams.traits.has_streams
    return RunDocument(
        num_prompts=len(requests),
        num_prompt_tokens=sum(len(each.prompt) for each in requests),
        num_made=totals.num_made,
        seconds=seconds,
        num_steps={mode.value: count for mode, count in totals.num_steps.items()},
        num_eager={mode.value: count for mode, count in totals.num_eager.items()},
        num_in_pieces={mode.value: count for mode, count in totals.num_in_pieces.items()},
        num_in_halves={mode.value: count for mode, count in totals.num_in_halves.items()},
        eager_because=_eager_because(engine, totals),
        page_size=engine.memory.page_size,
        max_total_tokens=engine.memory.pages.num_pages * engine.memory.page_size,
        num_retracted=totals.num_retracted,
        planned_waits=totals.planned_waits if has_streams else None,
        bytes_to_host=totals.bytes_to_host if has_streams else None,
        bytes_to_device=totals.bytes_to_device if has_streams else None,
        host_us=totals.host_s / num_steps * _US,
        overlap=engine.overlaps,
        overlap_ratio=totals.overlap_ratio if has_streams else None,
    )


def speculation_document(
    engine: Engine, totals: StepTotals, num_waits: int | None
) -> SpeculationDocument | None:
    """Write down how drafts went; nothing where the server does not speculate."""
    drafts = drafts_document(engine.plan)
    if drafts is None:
        return None
    has_streams = engine.streams.traits.has_streams
    num_verified = totals.num_verified
    return SpeculationDocument(
        drafts=drafts,
        draft_backends={
            f"{use.role.value} {use.phase.value}": use.backend
            for use in engine.spec_v2_attn_backends
            if use.role is not Role.TARGET
        },
        num_verified=num_verified,
        num_drafts=num_verified * (drafts.num_draft_tokens - 1),
        num_accepted=totals.num_accepted - num_verified,
        accept_length=totals.num_accepted / num_verified if num_verified else None,
        planned_waits_for_lengths=totals.waits_for_lengths if has_streams else None,
        counted_waits=num_waits,
    )


def _eager_because(engine: Engine, totals: StepTotals) -> dict[str, str]:
    """Say what kept steps from graphs that were captured; there is one thing that can."""
    speculates = engine.plan.flags.speculative_algorithm is not None
    phases = {
        mode: Phase.VERIFY if speculates and mode is ForwardMode.DECODE else mode.phase
        for mode in totals.num_eager
    }
    return {
        mode.value: "its batches are larger than any that was captured"
        for mode, phase in phases.items()
        if phase in engine.graphs[Role.TARGET].phases
    }


def backends_of(engine: Engine) -> dict[str, str]:
    """Name the backend of each phase that runs."""
    uses = engine.backends.names
    return {phase.value: uses[phase].backend for phase in Phase if phase in uses}


def output_document(request: Request) -> OutputDocument:
    """Write down what came of a request."""
    assert request.finish_reason is not None, "every request has ended"
    return OutputDocument(
        prompt=list(request.prompt),
        output=request.output,
        finish_reason=request.finish_reason.value,
    )
