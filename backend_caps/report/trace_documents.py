"""The JSON of a trace: Chrome's Trace Event Format, which Perfetto opens as it is.

Times are microseconds. Each level is a process, each lane a thread of it; what lies within another
slice of its thread is a child of it. https://perfetto.dev/docs/getting-started/other-formats
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Annotated, Literal

from pydantic import Field

from backend_caps.report.document import LEFT_OUT, Document
from backend_caps.report.dry_run_documents import WorsenedDocument
from backend_caps.report.step_costs import DraftsDocument, LeftOutDocument, Level
from backend_caps.report.trace_timeline import US, Lane, Stretch, Timeline

_TIDS = 100
"""Threads of a process: none has another one's number."""
_INSIDE_NS = 1
"""How far before a slice's end a flow is bound to it: at its end it would be the next one's."""
SpanCategory = Literal["host", "host wait", "device", "operator", "idle"]
SignalName = Literal[
    "lengths",
    "lengths to the host",
    "gather",
    "WAR barrier",
    "batch",
    "tokens",
    "tokens to the host",
    "other",
]


class SliceDetails(Document):
    """What is known of a slice, beside its name and its times."""

    step: Annotated[int | None, LEFT_OUT] = None
    """The step that it is of: 1 is the first that is shown, and those before it are 0 and less;
    left out of idle slices."""
    waits_for: Annotated[str | None, LEFT_OUT] = None
    """The lane that the host waits for, or that let an idle lane go on; left out where none
    waits, and where the host waits for the whole device."""
    busy_us: Annotated[float | None, LEFT_OUT] = None
    """How long operators of a block ran; left out of all else."""
    launched_us: Annotated[float | None, LEFT_OUT] = None
    """When the host had launched an operator; left out of all else, and where it is not known."""
    replayed: Annotated[bool | None, LEFT_OUT] = None
    """Whether a graph's replay launched an operator; left out of all else."""
    num_bytes: Annotated[int | None, LEFT_OUT] = None
    """Bytes between host and device; left out where none cross."""
    site: Annotated[str | None, LEFT_OUT] = None
    """The line that launched an operator, or that was captured; left out of all else."""


class SliceDocument(Document):
    """A stretch of a lane."""

    ph: Literal["X"] = "X"
    """A complete event."""
    name: str
    """The region of the runtime, the operator, or who is waited for."""
    cat: SpanCategory
    """What it is: the host's code or its wait; a block of a stream, an operator of it, or nothing
    that runs."""
    ts: float
    """When it begins."""
    dur: float
    """How long it is."""
    pid: int
    """The level's process."""
    tid: int
    """The lane's thread."""
    args: SliceDetails
    """What else is known."""


class FlowDocument(Document):
    """One end of an arrow, in the slice that runs then."""

    ph: Literal["s", "f"]
    """Whether it begins or ends here."""
    id: int
    """The arrow's number; both ends have it."""
    name: SignalName
    """What it says."""
    cat: Literal["flow"] = "flow"
    """All of them are shown as flows."""
    ts: float
    """When."""
    pid: int
    """The level's process."""
    tid: int
    """The lane's thread."""
    bp: Annotated[Literal["e"] | None, LEFT_OUT] = None
    """`e`: it is bound to the slice that encloses it; left out, to the next one: what the host
    goes on with."""


class NameDocument(Document):
    """Names a level's process or a lane's thread, or puts it in its place."""

    ph: Literal["M"] = "M"
    """A metadata event."""
    name: Literal["process_name", "process_sort_index", "thread_name", "thread_sort_index"]
    """What is named, or put in its place."""
    pid: int
    """The level's process."""
    tid: int
    """The lane's thread; 0 where the process is meant."""
    args: dict[Literal["name", "sort_index"], str | int]
    """Its name as it is shown, or its place from the top."""


EventDocument = SliceDocument | FlowDocument | NameDocument


class CostsDocument(Document):
    """What each thing takes on the recording's clock: numbers that were chosen."""

    python_call_ns: int
    """A call of a function of relay and runtime."""
    launch_ns: int
    """The host's share of an operator."""
    replay_ns: int
    """The host's share of a graph's replay."""
    event_ns: int
    """The host's share of recording an event, or of a stream's wait for one."""
    op_ns: int
    """An operator on the device."""
    product_ns: int
    """An operator that reads weights or a cache."""
    copy_ns: int
    """A copy between host and device, beside its bytes."""
    bytes_per_ns: int
    """How fast its bytes cross."""


class TracedLevelDocument(Document):
    """What a step came to at one level: means over the steps."""

    level: Level
    """What the host receives about lengths."""
    is_planned: bool
    """Whether it is the plan's own."""
    pid: int
    """Its process among the events."""
    step_us: float
    """A step, by the host's clock."""
    lengths_us: float
    """How long the host waits for lengths."""
    tokens_us: float
    """How long the host waits for tokens."""
    idle_us: float
    """How long the forward stream runs nothing."""
    bytes_to_host: float
    """What crosses from the device to the host."""
    bytes_of_lengths: float
    """That of it which is lengths."""


class TraceDetails(Document):
    """What was run, by which clock, and what it came to."""

    plan: str
    """The plan's fingerprint."""
    level: Level
    """The plan's `host_seq_lens`."""
    decided_by: str
    """Who holds it there."""
    clock: Literal["simulated", "torch.profiler"]
    """Where the times come from."""
    clock_says: str
    """What they mean, in a sentence."""
    costs: CostsDocument | None
    """What the recording's clock counts; null where times were measured."""
    device: str
    """The torch device."""
    num_steps: int
    """Decode steps at each level."""
    batch_size: int
    """Requests of each."""
    drafts: DraftsDocument | None
    """How they speculate; null where they do not."""
    relays_lengths: bool
    """Whether lengths are relayed from step to step, so that the level matters."""
    stand_in: str | None
    """Whose code ran in the place of whose; null where each backend's own did."""
    changes: list[WorsenedDocument]
    """Values that a stand-in made worse than they were decided."""
    not_here: list[str]
    """Flags of the server that do not hold here."""
    levels: list[TracedLevelDocument]
    """From the most that the host receives to the least."""
    left_out: list[LeftOutDocument]
    """Levels that were not run."""
    versions: dict[str, str]
    """Releases, and the rules, that it is of."""


class TraceDocument(Document):
    """Steps of a server's configuration as a timeline, at each level that it can run with."""

    schema_: Annotated[Literal["backend-caps/trace@1"], Field(alias="schema")]
    displayTimeUnit: Literal["ms"] = "ms"  # noqa: N815 - the format's name
    """What viewers count in; times are microseconds whatever it says."""
    otherData: TraceDetails  # noqa: N815 - the format's name
    """What was run, and what it came to."""
    traceEvents: list[EventDocument]  # noqa: N815 - the format's name
    """Names first, then slices by process, thread and time, then flows."""


def events_of(timelines: Sequence[Timeline]) -> list[EventDocument]:
    """Write timelines down, each as a process; their steps begin at the same time.

    What reaches out of the steps is there as a whole, and no time is below zero.
    """
    names, slices, flows = list[EventDocument](), list[SliceDocument](), list[EventDocument]()
    numbers, before_ns = count(1), 0
    for timeline in timelines:
        begins = (own.begin_ns for own in (*timeline.spans, *timeline.gaps))
        before_ns = max(before_ns, timeline.begin_ns - min(begins, default=timeline.begin_ns))
    for pid, timeline in enumerate(timelines, 1):
        process = _Process(pid, timeline, timeline.begin_ns - before_ns)
        names += process.names()
        slices += sorted(process.slices(), key=lambda own: (own.tid, own.ts, -own.dur))
        flows += process.flows(numbers)
    return [*names, *slices, *flows]


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
            if span.lane == Lane.HOST:
                category = "host wait" if span.is_wait else "host"
            busy_us = span.busy_ns / US if span.ops else None
            details = SliceDetails(step=span.step, waits_for=span.for_lane, busy_us=busy_us)
            yield self._slice(span, span.name, category, details)
        for span in self._timeline.spans:
            for op in span.ops:
                launched_us = None if op.launched_ns is None else self._us(op.launched_ns)
                num_bytes = op.num_bytes or None
                details = SliceDetails.of(op, launched_us=launched_us, num_bytes=num_bytes)
                yield self._slice(op, op.name, "operator", details)
        for gap in self._timeline.gaps:
            details = SliceDetails(waits_for=gap.waits_for)
            yield self._slice(gap, f"idle: waits for {gap.waits_for}", "idle", details)

    def _slice(
        self, own: Stretch, name: str, category: SpanCategory, details: SliceDetails
    ) -> SliceDocument:
        place, dur = self._place(own.lane, own.begin_ns), own.length_ns / US
        return SliceDocument(name=name, cat=category, dur=dur, args=details, **place)

    def flows(self, numbers: Iterator[int]) -> Iterator[FlowDocument]:
        """Write both ends of each arrow whose ends lie in slices.

        An arrow to the host ends in what the host does next: its wait began before what it waited
        for, and Perfetto turns an arrow round that leads to an earlier slice.
        """
        for arrow in self._timeline.arrows:
            begin_ns, is_to_host = arrow.begin_ns - _INSIDE_NS, arrow.end_lane == Lane.HOST
            has_begin = any(own.covers(begin_ns) for own in self._timeline.on(arrow.begin_lane))
            has_end = any(
                arrow.end_ns <= own.begin_ns if is_to_host else own.covers(arrow.end_ns)
                for own in self._timeline.on(arrow.end_lane)
            )
            if has_begin and has_end:
                number, name = next(numbers), arrow.signal.value
                begins = self._place(arrow.begin_lane, begin_ns)
                ends = self._place(arrow.end_lane, arrow.end_ns)
                bound: Literal["e"] | None = None if is_to_host else "e"
                yield FlowDocument(ph="s", id=number, name=name, bp="e", **begins)
                yield FlowDocument(ph="f", id=number, name=name, bp=bound, **ends)

    def _place(self, lane: str, at_ns: int) -> Mapping[str, float]:
        return {"ts": self._us(at_ns), "pid": self._pid, "tid": self._tids[lane]}

    def _us(self, at_ns: int) -> float:
        return (at_ns - self._zero_ns) / US
