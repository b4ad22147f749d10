"""A timeline of two steps, small enough to be read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from backend_caps.report.step_costs import Level
from backend_caps.report.trace_documents import (
    EventDocument,
    TraceDetails,
    TracedLevelDocument,
    TraceDocument,
)
from backend_caps.report.trace_timeline import Arrow, Gap, Lane, Signal, Span, TimedOp, Timeline
from tests.unit.report.stored import read

US = 1000


def op(begin_us: int, end_us: int, *, num_bytes: int = 0) -> TimedOp:
    """Make an operator that was launched a microsecond before it began."""
    return TimedOp(
        name="aten::add",
        lane="forward",
        region="verify",
        step=1,
        held_by="forward",
        begin_ns=begin_us * US,
        end_ns=end_us * US,
        launched_ns=(begin_us - 1) * US,
        replayed=False,
        site="acme/model.py:3",
        num_bytes=num_bytes,
    )


def block(lane: str, name: str, step: int, *ops: TimedOp) -> Span:
    """Make a block of a stream."""
    return Span(
        lane=lane, name=name, step=step, begin_ns=ops[0].begin_ns, end_ns=ops[-1].end_ns, ops=ops
    )


def host(name: str, step: int, begin_us: int, end_us: int, depth: int = 1) -> Span:
    """Make a span of the host's work."""
    return Span(
        lane=Lane.HOST,
        name=name,
        step=step,
        begin_ns=begin_us * US,
        end_ns=end_us * US,
        depth=depth,
    )


def wait(for_lane: str | None, step: int, begin_us: int, end_us: int) -> Span:
    """Make a wait of the host."""
    span = host("wait for lengths", step, begin_us, end_us, depth=2)
    return replace(span, is_wait=True, for_lane=for_lane)


def arrow(signal: Signal, begin: tuple[str, int], end: tuple[str, int]) -> Arrow:
    """Make an arrow from a lane and time to another."""
    return Arrow(
        signal=signal,
        begin_lane=begin[0],
        begin_ns=begin[1] * US,
        end_lane=end[0],
        end_ns=end[1] * US,
    )


EXACT = Timeline(
    level="exact",
    lanes=(Lane.HOST, "schedule", "forward", "copy", "stream 9"),
    spans=(
        host("step 1", 1, 100, 600, depth=0),
        host("build batch", 1, 100, 300),
        wait("copy", 1, 120, 290),
        host("launch", 1, 300, 560),
        wait(None, 1, 570, 600),
        host("step 2", 2, 600, 1100, depth=0),
        host("mystery", 2, 600, 1100),
        block("schedule", "build batch", 1, op(400, 410)),
        block("forward", "verify", 0, op(50, 200)),
        block("forward", "publish", 0, op(200, 204)),
        block("forward", "draft", 1, op(420, 425), op(430, 435), op(520, 600)),
        block("forward", "verify", 1, op(600, 1300)),
        block("copy", "lengths", 1, op(204, 290, num_bytes=72)),
        block("stream 9", "other", 1, op(700, 710)),
    ),
    arrows=(
        arrow(Signal.LENGTHS, ("forward", 204), ("copy", 204)),
        arrow(Signal.LENGTHS_TO_HOST, ("copy", 290), (Lane.HOST, 290)),
        arrow(Signal.GATHER, ("forward", 204), ("schedule", 400)),
        arrow(Signal.WAR_BARRIER, ("forward", 204), ("schedule", 400)),
        arrow(Signal.OTHER, ("forward", 1300), (Lane.HOST, 1310)),
        arrow(Signal.TOKENS, ("copy", 320), ("forward", 500)),
    ),
    gaps=(
        Gap(lane="forward", begin_ns=204 * US, end_ns=420 * US, waits_for="schedule"),
        Gap(lane="forward", begin_ns=425 * US, end_ns=430 * US, waits_for=Lane.HOST),
        Gap(lane="forward", begin_ns=435 * US, end_ns=520 * US, waits_for=Lane.HOST),
        Gap(lane="copy", begin_ns=10 * US, end_ns=204 * US, waits_for="forward"),
        Gap(lane="forward", begin_ns=1300 * US, end_ns=1400 * US, waits_for=Lane.HOST),
    ),
    begin_ns=100 * US,
    end_ns=1100 * US,
    num_steps=2,
    bytes_to_host=144,
    bytes_of_lengths=72,
)
"""Two steps with a mirror: an operator of a stream that nobody named is among them."""
NONE = Timeline(
    level="none",
    lanes=(Lane.HOST, "schedule", "forward"),
    spans=(
        host("step 1", 1, 50, 350, depth=0),
        host("launch", 1, 50, 300),
        host("step 2", 2, 350, 650, depth=0),
        block("forward", "verify", 1, op(60, 650)),
    ),
    arrows=(arrow(Signal.WAR_BARRIER, ("forward", 100), ("schedule", 600)),),
    gaps=(),
    begin_ns=50 * US,
    end_ns=650 * US,
    num_steps=2,
    bytes_to_host=72,
    bytes_of_lengths=0,
)
"""Two shorter steps without one."""


def details(*levels: TracedLevelDocument, stand_in: str | None = None) -> TraceDetails:
    """Read what was run; with a stand-in, what that made worse too."""
    if stand_in is not None:
        told = read("trace-details-with-a-stand-in", TraceDetails)
        return told.model_copy(update={"stand_in": stand_in})
    told = read("trace-details", TraceDetails)
    return told.model_copy(update={"levels": list(levels) or told.levels})


def document(told: TraceDetails, events: Sequence[EventDocument] = ()) -> TraceDocument:
    """Write a trace's document."""
    return TraceDocument(schema_="backend-caps/trace@1", otherData=told, traceEvents=[*events])


def level(own: Level, pid: int, *, is_planned: bool = False) -> TracedLevelDocument:
    """Make what a step came to."""
    update = {"level": own, "pid": pid, "is_planned": is_planned}
    return details().levels[0].model_copy(update=update)
