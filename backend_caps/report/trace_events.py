"""From timelines to the events of a trace document."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Literal

from backend_caps.report.trace_documents import (
    EventDocument,
    FlowDocument,
    NameDetails,
    NameDocument,
    OrderDetails,
    OrderDocument,
    SliceDetails,
    SliceDocument,
    SpanCategory,
)
from backend_caps.report.trace_timeline import HOST, Arrow, Gap, Span, SpanKind, TimedOp, Timeline

_US = 1000
"""Nanoseconds of a microsecond."""
_TIDS = 100
"""Threads of a process: none has another one's number."""
_INSIDE = 1
"""How far before a slice's end a flow is bound to it: at its end it would be the next one's."""


def events_of(timelines: Sequence[Timeline]) -> list[EventDocument]:
    """Write timelines down, each as a process; their steps begin at the same time.

    What reaches out of the steps is there as a whole, and no time is below zero.
    """
    names: list[EventDocument] = []
    slices: list[EventDocument] = []
    flows: list[EventDocument] = []
    before_ns = max((_before(timeline) for timeline in timelines), default=0)
    numbers = count(1)
    for pid, timeline in enumerate(timelines, 1):
        own = _Process(pid, timeline, timeline.begin_ns - before_ns)
        names += own.names()
        slices += own.slices()
        flows += own.flows(numbers)
    return [*names, *slices, *flows]


def _before(timeline: Timeline) -> int:
    begins = (span.begin_ns for span in timeline.spans)
    idle = (gap.begin_ns for gap in timeline.gaps)
    return timeline.begin_ns - min((*begins, *idle), default=timeline.begin_ns)


class _Process:
    """One timeline's events.

    Args:
        pid: its process.
        timeline: what it shows.
        zero_ns: the time that is written as 0.
    """

    def __init__(self, pid: int, timeline: Timeline, zero_ns: int) -> None:
        self._pid = pid
        self._timeline = timeline
        self._zero_ns = zero_ns
        self._tids = {lane: tid for tid, lane in enumerate(timeline.lanes, _TIDS * pid + 1)}

    def names(self) -> Iterator[EventDocument]:
        """Name the process and its threads, and put them in order."""
        pid, title = self._pid, f"host_seq_lens {self._timeline.level}"
        yield NameDocument(name="process_name", pid=pid, tid=0, args=NameDetails(name=title))
        order = OrderDetails(sort_index=pid)
        yield OrderDocument(name="process_sort_index", pid=pid, tid=0, args=order)
        for lane, tid in self._tids.items():
            named, order = NameDetails(name=lane), OrderDetails(sort_index=tid)
            yield NameDocument(name="thread_name", pid=pid, tid=tid, args=named)
            yield OrderDocument(name="thread_sort_index", pid=pid, tid=tid, args=order)

    def slices(self) -> list[SliceDocument]:
        """Write blocks, operators, waits and gaps; what holds others comes before them."""
        found = [self._span(span) for span in self._timeline.spans]
        found += [self._op(span, op) for span in self._timeline.spans for op in span.ops]
        found += [self._gap(gap) for gap in self._timeline.gaps]
        return sorted(found, key=lambda own: (own.tid, own.ts, -own.dur))

    def flows(self, numbers: Iterator[int]) -> Iterator[FlowDocument]:
        """Write both ends of each arrow whose ends lie in slices.

        An arrow to the host ends in what the host does next: its wait began before what it waited
        for, and Perfetto turns an arrow round that leads to an earlier slice.
        """
        for arrow in self._timeline.arrows:
            begin_ns, is_to_host = arrow.begin_ns - _INSIDE, arrow.end_lane == HOST
            ends = self._begins if is_to_host else self._has
            if self._has(arrow.begin_lane, begin_ns) and ends(arrow.end_lane, arrow.end_ns):
                number = next(numbers)
                begin = (arrow.begin_lane, begin_ns)
                yield self._flow(arrow, number, begin, ph="s", bp="e")
                bound: Literal["e"] | None = None if is_to_host else "e"
                yield self._flow(arrow, number, (arrow.end_lane, arrow.end_ns), ph="f", bp=bound)

    def _has(self, lane: str, at_ns: int) -> bool:
        return any(span.begin_ns <= at_ns < span.end_ns for span in self._timeline.on(lane))

    def _begins(self, lane: str, at_ns: int) -> bool:
        return any(span.begin_ns >= at_ns for span in self._timeline.on(lane))

    def _flow(
        self,
        arrow: Arrow,
        number: int,
        place: tuple[str, int],
        *,
        ph: Literal["s", "f"],
        bp: Literal["e"] | None,
    ) -> FlowDocument:
        lane, at_ns = place
        return FlowDocument(
            ph=ph,
            id=number,
            name=arrow.signal.value,
            ts=self._us(at_ns),
            pid=self._pid,
            tid=self._tids[lane],
            bp=bp,
        )

    def _span(self, span: Span) -> SliceDocument:
        category: SpanCategory = "device"
        if span.lane == HOST:
            category = "host" if span.kind is SpanKind.WORK else "host wait"
        details = SliceDetails(
            step=span.step,
            waits_for=span.for_lane,
            busy_us=span.busy_ns / _US if span.ops else None,
        )
        return self._slice(span.name, category, span.lane, (span.begin_ns, span.end_ns), details)

    def _op(self, span: Span, op: TimedOp) -> SliceDocument:
        details = SliceDetails(
            step=span.step,
            launched_us=None if op.launched_ns is None else self._us(op.launched_ns),
            replayed=op.replayed,
            num_bytes=op.num_bytes or None,
            site=op.site,
        )
        times = (op.begin_ns, op.end_ns)
        return self._slice(op.name, "operator", span.lane, times, details)

    def _gap(self, gap: Gap) -> SliceDocument:
        details = SliceDetails(waits_for=gap.waits_for)
        name = f"idle: waits for {gap.waits_for}"
        return self._slice(name, "idle", gap.lane, (gap.begin_ns, gap.end_ns), details)

    def _slice(
        self,
        name: str,
        category: SpanCategory,
        lane: str,
        times_ns: tuple[int, int],
        details: SliceDetails,
    ) -> SliceDocument:
        begin_ns, end_ns = times_ns
        return SliceDocument(
            name=name,
            cat=category,
            ts=self._us(begin_ns),
            dur=(end_ns - begin_ns) / _US,
            pid=self._pid,
            tid=self._tids[lane],
            args=details,
        )

    def _us(self, at_ns: int) -> float:
        return (at_ns - self._zero_ns) / _US
