"""A timeline: what a run's host and streams did when; and its events, which Perfetto opens.

Times are whole nanoseconds since the recording began.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import count
from typing import Literal

from backend_caps.report.trace_documents import (
    EventDocument,
    FlowDocument,
    NameDocument,
    SliceDetails,
    SliceDocument,
    SpanCategory,
)

HOST = "host"
"""The lane of what the host does; every other lane is a stream."""
FORWARD, SCHEDULE, COPY, HOST_COPY = "forward", "schedule", "copy", "host_copy"
"""The lanes of an engine's streams."""
WAITED_FOR = {COPY: "lengths", HOST_COPY: "tokens"}
"""What the host waits for, by the stream that brings it."""
US = 1000
"""Nanoseconds of a microsecond."""
_TIDS = 100
"""Threads of a process: none has another one's number."""
_INSIDE_NS = 1
"""How far before a slice's end a flow is bound to it: at its end it would be the next one's."""


class Signal(Enum):
    """What a wait is for."""

    LENGTHS = "lengths"
    """The copy stream waits for the publish, to bring lengths to the host."""
    LENGTHS_TO_HOST = "lengths to the host"
    """The host waits for the copy stream."""
    GATHER = "gather"
    """The schedule stream waits for the publish, to gather lengths on the device."""
    WAR_BARRIER = "WAR barrier"
    """The schedule stream waits for the forward's last read of what the scheduler writes."""
    BATCH = "batch"
    """The forward stream waits for the schedule stream, where the batch was built."""
    TOKENS = "tokens"
    """The host-copy stream waits for the forward."""
    TOKENS_TO_HOST = "tokens to the host"
    """The host waits for the tokens."""
    OTHER = "other"
    """Any other wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedOp:
    """An operator of a stream."""

    name: str
    lane: str
    region: str
    """The host's innermost region when it launched it."""
    step: int
    begin_ns: int
    end_ns: int
    held_by: str
    """The lane that let it begin: its own, where nothing else did."""
    launched_ns: int | None
    """When the host had launched it; None: not known."""
    replayed: bool | None
    """Whether a graph's replay launched it, with others; None: not known."""
    site: str | None
    """The line that launched it; of a replayed one, the line that was captured. None: not known."""
    num_bytes: int
    """What crosses between host and device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A stretch of a lane; on the host it may lie in others."""

    lane: str
    name: str
    step: int
    """The step that it is of: 1 is the first that is shown, and those before it are 0 and less."""
    begin_ns: int
    end_ns: int
    depth: int = 0
    """How many spans of its lane it lies in."""
    ops: tuple[TimedOp, ...] = ()
    """What a stream ran."""
    is_wait: bool = False
    """Whether the host blocks; else its code runs, or operators of a stream."""
    for_lane: str | None = None
    """The stream that the host waits for; None where it waits for the device, or not at all."""

    @property
    def length_ns(self) -> int:
        """How long it is."""
        return self.end_ns - self.begin_ns

    @property
    def busy_ns(self) -> int:
        """How long operators of it ran."""
        return sum(op.end_ns - op.begin_ns for op in self.ops)

    def covers(self, at_ns: int) -> bool:
        """Return whether it goes on at a time."""
        return self.begin_ns <= at_ns < self.end_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrow:
    """Something that was there, and what waited for it."""

    signal: Signal
    begin_lane: str
    begin_ns: int
    """When it was there."""
    end_lane: str
    end_ns: int
    """When what waited went on: the next operator, or the host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """A stretch in which a stream ran nothing."""

    lane: str
    begin_ns: int
    end_ns: int
    waits_for: str
    """The lane that let the next operator begin: the host, which launched it only then, or the
    stream that it waited for."""

    @property
    def length_ns(self) -> int:
        """How long it is."""
        return self.end_ns - self.begin_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Some steps of a run."""

    level: str
    """What the host is told about lengths."""
    lanes: tuple[str, ...]
    """From the host down."""
    spans: tuple[Span, ...]
    """By lane, by time, those that hold others before them; some reach out of the steps."""
    arrows: tuple[Arrow, ...]
    gaps: tuple[Gap, ...]
    begin_ns: int
    """When the host began the first step."""
    end_ns: int
    """When it ended the last."""
    num_steps: int
    bytes_to_host: int
    """What crossed to the host in the steps."""
    bytes_of_lengths: int
    """That of it which is lengths."""

    @property
    def step_ns(self) -> int:
        """How long a step takes the host: a mean, rounded."""
        return round((self.end_ns - self.begin_ns) / self.num_steps)

    def on(self, lane: str) -> tuple[Span, ...]:
        """List the spans of a lane."""
        return tuple(span for span in self.spans if span.lane == lane)

    def waits_for(self, lane: str) -> tuple[Span, ...]:
        """List the host's waits for a stream."""
        return tuple(span for span in self.on(HOST) if span.for_lane == lane)

    def idle_ns(self, lane: str) -> int:
        """Sum up how long a stream runs nothing within the steps."""
        return sum(self.within(gap.begin_ns, gap.end_ns) for gap in self.gaps if gap.lane == lane)

    def waited_ns(self, lane: str) -> int:
        """Sum up how long the host waits for a stream."""
        return sum(span.length_ns for span in self.waits_for(lane))

    def within(self, begin_ns: int, end_ns: int) -> int:
        """Measure how much of a stretch lies within the steps."""
        return max(0, min(end_ns, self.end_ns) - max(begin_ns, self.begin_ns))


def events_of(timelines: Sequence[Timeline]) -> list[EventDocument]:
    """Write timelines down, each as a process; their steps begin at the same time.

    What reaches out of the steps is there as a whole, and no time is below zero.
    """
    names: list[EventDocument] = []
    slices: list[SliceDocument] = []
    flows: list[EventDocument] = []
    before_ns = max((_before_ns(timeline) for timeline in timelines), default=0)
    numbers = count(1)
    for pid, timeline in enumerate(timelines, 1):
        process = _Process(pid, timeline, timeline.begin_ns - before_ns)
        names += process.names()
        slices += sorted(process.slices(), key=lambda own: (own.tid, own.ts, -own.dur))
        flows += process.flows(numbers)
    return [*names, *slices, *flows]


def _before_ns(timeline: Timeline) -> int:
    """Measure how far a timeline reaches out before its first step."""
    stretches: Sequence[Span | Gap] = (*timeline.spans, *timeline.gaps)
    begins = (own.begin_ns for own in stretches)
    return timeline.begin_ns - min(begins, default=timeline.begin_ns)


class _Process:
    """One timeline's events.

    Args:
        pid: its process.
        timeline: what it shows.
        zero_ns: the time that is written as 0.
    """

    def __init__(self, pid: int, timeline: Timeline, zero_ns: int) -> None:
        self._pid, self._timeline, self._zero_ns = pid, timeline, zero_ns
        self._tids = {lane: tid for tid, lane in enumerate(timeline.lanes, _TIDS * pid + 1)}

    def names(self) -> Iterator[NameDocument]:
        """Name the process and its threads, and put them in order."""
        pid, title = self._pid, f"host_seq_lens {self._timeline.level}"
        yield NameDocument(name="process_name", pid=pid, tid=0, args={"name": title})
        yield NameDocument(name="process_sort_index", pid=pid, tid=0, args={"sort_index": pid})
        for lane, tid in self._tids.items():
            yield NameDocument(name="thread_name", pid=pid, tid=tid, args={"name": lane})
            yield NameDocument(name="thread_sort_index", pid=pid, tid=tid, args={"sort_index": tid})

    def slices(self) -> Iterator[SliceDocument]:
        """Write blocks, operators, waits and gaps."""
        for span in self._timeline.spans:
            category: SpanCategory = "device"
            if span.lane == HOST:
                category = "host wait" if span.is_wait else "host"
            busy_us = span.busy_ns / US if span.ops else None
            details = SliceDetails(step=span.step, waits_for=span.for_lane, busy_us=busy_us)
            yield self._slice(span, span.lane, span.name, category, details)
        for span in self._timeline.spans:
            for op in span.ops:
                details = SliceDetails(
                    step=span.step,
                    launched_us=None if op.launched_ns is None else self._us(op.launched_ns),
                    replayed=op.replayed,
                    num_bytes=op.num_bytes or None,
                    site=op.site,
                )
                yield self._slice(op, span.lane, op.name, "operator", details)
        for gap in self._timeline.gaps:
            details = SliceDetails(waits_for=gap.waits_for)
            yield self._slice(gap, gap.lane, f"idle: waits for {gap.waits_for}", "idle", details)

    def _slice(
        self,
        own: Span | TimedOp | Gap,
        lane: str,
        name: str,
        category: SpanCategory,
        details: SliceDetails,
    ) -> SliceDocument:
        return SliceDocument(
            name=name,
            cat=category,
            dur=(own.end_ns - own.begin_ns) / US,
            args=details,
            **self._place(lane, own.begin_ns),
        )

    def flows(self, numbers: Iterator[int]) -> Iterator[FlowDocument]:
        """Write both ends of each arrow whose ends lie in slices.

        An arrow to the host ends in what the host does next: its wait began before what it waited
        for, and Perfetto turns an arrow round that leads to an earlier slice.
        """
        for arrow in self._timeline.arrows:
            begin_ns, is_to_host = arrow.begin_ns - _INSIDE_NS, arrow.end_lane == HOST
            ends = self._timeline.on(arrow.end_lane)
            has_end = any(
                arrow.end_ns <= own.begin_ns if is_to_host else own.covers(arrow.end_ns)
                for own in ends
            )
            if has_end and any(own.covers(begin_ns) for own in self._timeline.on(arrow.begin_lane)):
                number, name = next(numbers), arrow.signal.value
                begins = self._place(arrow.begin_lane, begin_ns)
                ends_at = self._place(arrow.end_lane, arrow.end_ns)
                bound: Literal["e"] | None = None if is_to_host else "e"
                yield FlowDocument(ph="s", id=number, name=name, bp="e", **begins)
                yield FlowDocument(ph="f", id=number, name=name, bp=bound, **ends_at)

    def _place(self, lane: str, at_ns: int) -> Mapping[str, float]:
        return {"ts": self._us(at_ns), "pid": self._pid, "tid": self._tids[lane]}

    def _us(self, at_ns: int) -> float:
        return (at_ns - self._zero_ns) / US
