"""A trace as sections: what was run, what a step came to, and where the files are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from backend_caps.report.sections import Heading, Lines, Section, Table
from backend_caps.report.step_costs import drafts_words
from backend_caps.report.trace_documents import TraceDetails, TracedLevelDocument, TraceDocument


def trace_view(document: TraceDocument, files: Sequence[str]) -> Iterator[Section]:
    """Show what a step came to at each level.

    Args:
        document: the trace.
        files: what was written, and where.
    """
    told = document.otherData
    yield Heading(f"{steps_words(told)} on {told.device}")
    yield Lines(tuple(_what_ran(told)))
    yield Table(
        ("host_seq_lens", "step µs", "for lengths µs", "forward idle µs", "bytes to host"),
        tuple(_row(level) for level in told.levels),
        cells="names",
    )
    yield Lines(tuple(_left_out(told)))
    if files:
        yield Lines(tuple(files), "places")


def steps_words(told: TraceDetails) -> str:
    """Count what was recorded."""
    steps = "step" if told.num_steps == 1 else "steps"
    requests = "request" if told.batch_size == 1 else "requests"
    return f"{told.num_steps} decode {steps} of {told.batch_size} {requests}"


def _what_ran(told: TraceDetails) -> Iterator[str]:
    yield f"plan {told.plan}: host_seq_lens is {told.level}, decided by {told.decided_by}"
    if told.drafts is not None:
        yield f"drafts: {drafts_words(told.drafts)}"
    if told.stand_in is not None:
        yield f"code: {told.stand_in}"
    for change in told.changes:
        where = "" if change.phase is None else f" in {change.phase}"
        yield f"with it {change.capability}{where} is {change.here}, decided was {change.decided}"
    yield from (f"left out: {own}" for own in told.not_here)
    yield f"clock: {told.clock_says}"


def _row(level: TracedLevelDocument) -> tuple[str, ...]:
    return (
        f"{level.level} (this plan)" if level.is_planned else level.level,
        f"{level.step_us:.0f}",
        f"{level.lengths_us:.0f}",
        f"{level.idle_us:.0f}",
        f"{level.bytes_to_host:.0f}",
    )


def _left_out(told: TraceDetails) -> Iterator[str]:
    yield "means of a step; for lengths: how long the host stands still for them"
    for each in told.left_out:
        yield f"not run with {each.level}: {each.reason}"
