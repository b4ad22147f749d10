"""The clock of a recording: when each operator would begin, were the device what `Costs` says.

It is computed while the run goes on, from what the host launches, orders and waits for, and in
that order; when the simulated device really runs the work is another matter, and changes nothing
here. An operator begins as soon as the host has launched it, its stream has ended what came before,
and what the stream waits for is there. The host goes on by itself, but for its own waits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from backend_caps.insight.trace.blocks import Ran
from backend_caps.insight.trace.costs import Costs
from backend_caps.insight.trace.signals import Point, Waiting, arrow
from backend_caps.report.trace_timeline import HOST, WAITED_FOR, Arrow, Span, SpanKind, TimedOp
from backend_caps.simulator.queues import Marker, Op
from backend_caps.simulator.records import DeviceWatcher, Waited, WaitKind

_NO_REGION = "other"


@dataclass(slots=True, kw_only=True)
class _Stream:
    lane: str
    ready_ns: int = 0
    """When all that it has is done."""
    held_by: str = ""
    """The lane that `ready_ns` comes from."""
    pending: list[tuple[Point, Waiting]] = field(default_factory=list)
    """Points that the next operator waits for, each with where the wait stands."""


@dataclass(slots=True, kw_only=True)
class _Open:
    name: str
    begin_ns: int


class Recorder(DeviceWatcher):
    """Is told what the host does, and keeps what it comes to on the clock.

    Args:
        lanes: the names of streams, by handle.
        costs: what everything takes.
    """

    def __init__(self, lanes: Mapping[int, str], costs: Costs | None = None) -> None:
        self.costs = costs or Costs()
        self.now_ns = 0
        """The host's clock."""
        self.step = 0
        """The step that the host works on."""
        self.ran: list[Ran] = []
        self.host_spans: list[Span] = []
        self.arrows: list[Arrow] = []
        self._lanes = dict(lanes)
        self._streams: dict[int, _Stream] = {}
        self._points: dict[Marker, Point] = {}
        self._open: list[_Open] = []
        self._is_replaying = False

    @property
    def region(self) -> str:
        """The innermost region that the host is in."""
        return self._open[-1].name if self._open else _NO_REGION

    @property
    def lanes(self) -> tuple[str, ...]:
        """The lanes of all streams that anything ran on, in the order of their handles."""
        used = {own.lane for own in self.ran}
        return tuple(lane for lane in self._lanes.values() if lane in used)

    def called(self) -> None:
        """Take in that the host calls a function of relay or runtime."""
        self.now_ns += self.costs.python_call_ns

    def enter(self, name: str) -> None:
        """Take in that the host enters a region."""
        self._open.append(_Open(name=name, begin_ns=self.now_ns))

    def leave(self) -> None:
        """Take in that the host leaves the innermost region."""
        left = self._open.pop()
        self._add(left.name, SpanKind.WORK, left.begin_ns, len(self._open))

    def launched(self, stream: int, op: Op) -> None:
        """Take in an operator: it begins when the host, its stream and its waits allow."""
        if not self._is_replaying:
            self.now_ns += self.costs.launch_ns
        own = self._stream(stream)
        is_late = self.now_ns > own.ready_ns
        begin_ns = max(self.now_ns, own.ready_ns)
        timed = TimedOp(
            name=op.name,
            begin_ns=begin_ns,
            end_ns=begin_ns + self.costs.of(op),
            launched_ns=self.now_ns,
            replayed=self._is_replaying,
            site=f"{_in_package(op.site.file)}:{op.site.line}",
            num_bytes=op.bytes_to_host + op.bytes_to_device,
        )
        held_by = HOST if is_late else own.held_by
        ran = Ran(lane=own.lane, region=self.region, step=self.step, op=timed, held_by=held_by)
        self.ran.append(ran)
        self.arrows += [arrow(point, waiting, begin_ns) for point, waiting in own.pending]
        own.pending.clear()
        own.ready_ns, own.held_by = timed.end_ns, own.lane

    def replay_began(self, stream: int) -> None:  # noqa: ARG002 - its operators name it
        """Take in that a graph is launched, as one."""
        self.now_ns += self.costs.replay_ns
        self._is_replaying = True

    def replay_ended(self) -> None:
        """Take in that what follows is launched by itself."""
        self._is_replaying = False

    def recorded(self, marker: Marker) -> None:
        """Take in an event: it is there when its stream has done all that it has."""
        self._pay_for_event()
        own = self._stream(marker.stream)
        time_ns = max(own.ready_ns, self.now_ns)
        self._points[marker] = Point(lane=own.lane, time_ns=time_ns, region=self.region)

    def waited(self, stream: int, marker: Marker) -> None:
        """Take in that a stream waits for an event."""
        self._pay_for_event()
        own, point = self._stream(stream), self._points.get(marker)
        if point is None or point.lane == own.lane:
            return  # of before the recording, or in order anyway
        own.pending.append((point, self._waiting(own.lane)))
        if point.time_ns > own.ready_ns:
            own.ready_ns, own.held_by = point.time_ns, point.lane

    def synchronized(self, cause: str, waited: Waited, marker: Marker | None) -> None:
        """Take in that the host waits: its clock goes on when what it waits for is there."""
        begin_ns = self.now_ns
        point = self._awaited(waited, marker)
        self.now_ns = max(begin_ns, point.time_ns)
        lane = None if waited.stream is None else point.lane
        what = cause if waited.kind is WaitKind.HIDDEN else WAITED_FOR.get(point.lane, cause)
        for_ = "hidden wait" if waited.kind is WaitKind.HIDDEN else "wait for"
        self._add(f"{for_} {what}", SpanKind.WAIT, begin_ns, len(self._open), lane)
        self.arrows.append(arrow(point, self._waiting(HOST), self.now_ns))

    def _waiting(self, lane: str) -> Waiting:
        return Waiting(lane=lane, region=self.region, step=self.step)

    def _awaited(self, waited: Waited, marker: Marker | None) -> Point:
        if marker is not None and marker in self._points:
            return self._points[marker]
        if waited.stream is not None:
            own = self._stream(waited.stream)
            return Point(lane=own.lane, time_ns=own.ready_ns, region=self.region)
        streams = [*self._streams.values()]
        last = max(streams, key=lambda own: own.ready_ns, default=_Stream(lane=HOST))
        return Point(lane=last.lane, time_ns=last.ready_ns, region=self.region)

    def _pay_for_event(self) -> None:
        if not self._is_replaying:
            self.now_ns += self.costs.event_ns

    def _add(
        self, name: str, kind: SpanKind, begin_ns: int, depth: int, for_lane: str | None = None
    ) -> None:
        span = Span(
            lane=HOST,
            name=name,
            kind=kind,
            step=self.step,
            begin_ns=begin_ns,
            end_ns=self.now_ns,
            depth=depth,
            for_lane=for_lane,
        )
        self.host_spans.append(span)

    def _stream(self, handle: int) -> _Stream:
        own = self._streams.get(handle)
        if own is None:
            lane = self._lanes.setdefault(handle, f"stream {handle}")
            own = self._streams[handle] = _Stream(lane=lane)
        return own


@cache
def _in_package(file: str) -> str:
    """Write where a file is in its package: the same on every machine."""
    path = Path(file)
    top = path.parent
    while (top / "__init__.py").is_file():
        top = top.parent
    return path.relative_to(top).as_posix()
