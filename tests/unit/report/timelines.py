"""A timeline of two steps, small enough to be read."""

from __future__ import annotations

from dataclasses import replace

from backend_caps.report.dry_run_documents import WorsenedDocument
from backend_caps.report.step_costs import DraftsDocument, LeftOutDocument, Level
from backend_caps.report.trace_documents import CostsDocument, TraceDetails, TracedLevelDocument
from backend_caps.report.trace_timeline import HOST, Arrow, Gap, Signal, Span, TimedOp, Timeline

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
        lane=HOST, name=name, step=step, begin_ns=begin_us * US, end_ns=end_us * US, depth=depth
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
        step=1,
    )


EXACT = Timeline(
    level="exact",
    lanes=(HOST, "schedule", "forward", "copy", "stream 9"),
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
        arrow(Signal.LENGTHS_TO_HOST, ("copy", 290), (HOST, 290)),
        arrow(Signal.GATHER, ("forward", 204), ("schedule", 400)),
        arrow(Signal.WAR_BARRIER, ("forward", 204), ("schedule", 400)),
        arrow(Signal.OTHER, ("forward", 1300), (HOST, 1310)),
        arrow(Signal.TOKENS, ("copy", 320), ("forward", 500)),
    ),
    gaps=(
        Gap(lane="forward", begin_ns=204 * US, end_ns=420 * US, waits_for="schedule"),
        Gap(lane="forward", begin_ns=425 * US, end_ns=430 * US, waits_for=HOST),
        Gap(lane="forward", begin_ns=435 * US, end_ns=520 * US, waits_for=HOST),
        Gap(lane="copy", begin_ns=10 * US, end_ns=204 * US, waits_for="forward"),
        Gap(lane="forward", begin_ns=1300 * US, end_ns=1400 * US, waits_for=HOST),
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
    lanes=(HOST, "schedule", "forward"),
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


def level(own: Level, pid: int, *, is_planned: bool = False) -> TracedLevelDocument:
    """Make what a step came to."""
    return TracedLevelDocument(
        level=own,
        is_planned=is_planned,
        pid=pid,
        step_us=500.0,
        lengths_us=85.0,
        tokens_us=12.0,
        idle_us=150.0,
        bytes_to_host=72.0,
        bytes_of_lengths=36.0,
    )


def details(*levels: TracedLevelDocument, stand_in: str | None = None) -> TraceDetails:
    """Make what was run."""
    return TraceDetails(
        plan="0123456789abcdef",
        level="none",
        decided_by="backend acme",
        clock="simulated",
        clock_says="the recording's",
        costs=CostsDocument(
            python_call_ns=1,
            launch_ns=2,
            replay_ns=3,
            event_ns=4,
            op_ns=5,
            product_ns=6,
            copy_ns=7,
            bytes_per_ns=8,
        ),
        device="sim",
        num_steps=2,
        batch_size=4,
        drafts=DraftsDocument(algorithm="EAGLE", topk=1, num_steps=2, num_draft_tokens=3),
        relays_lengths=True,
        stand_in=stand_in,
        changes=[
            WorsenedDocument(capability=name, phase=phase, decided="a", here="b")
            for name, phase in (("graph_metadata", "verify"), ("deterministic", None))
            if stand_in
        ],
        not_here=["--tp-size 8"] if stand_in else [],
        levels=list(levels) or [level("exact", 1), level("none", 2, is_planned=True)],
        left_out=[LeftOutDocument(level="upper_bound", reason="backend 'acme' reads lengths")],
        versions={"torch": "2.13.0"},
    )
