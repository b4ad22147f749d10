"""A timeline from what `torch.profiler` exports.

The export is Chrome's format with the profiler's own categories: `user_annotation` are the regions
that were marked, `cuda_runtime` and `cuda_driver` calls of the host, `kernel`, `gpu_memcpy` and
`gpu_memset` what ran, `cuda_sync` waits of streams and of the host. What ran has the `correlation`
of the call that launched it; all that a graph ran has that of the graph's launch. A stream's wait
names the call that recorded its event.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from backend_caps.insight.spans import Point, arrow, cut
from backend_caps.report.trace_timeline import (
    COPY,
    FORWARD,
    HOST,
    HOST_COPY,
    SCHEDULE,
    US,
    WAITED_FOR,
    Arrow,
    Span,
    TimedOp,
    Timeline,
)

MARK = "backend-caps: "
"""Before the name of each region that is marked for a recording."""
STEP = "step "
"""Before the number of a step, in the name of its region."""
_CALLS = frozenset({"cuda_runtime", "cuda_driver"})
_RAN = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_READ = _CALLS | _RAN | {"cuda_sync", "user_annotation"}
_RESOLVES = "resolve_seq_lens_cpu"


class _Args(BaseModel):
    model_config = ConfigDict(extra="ignore")

    stream: int | None = None
    correlation: int | None = None
    bytes: int = 0
    wait_on_stream: int | None = None
    wait_on_cuda_event_record_corr_id: int | None = None


class _Event(BaseModel):
    """Times are from the begin of the first region."""

    model_config = ConfigDict(extra="ignore")

    cat: str
    name: str
    ts: float
    dur: float = 0.0
    tid: int | str = 0
    args: _Args = Field(default_factory=_Args)
    path: tuple[str, ...] = ()
    """The regions that a call of CUDA lies in, from the outermost."""

    @property
    def begin_ns(self) -> int:
        return round(self.ts * US)

    @property
    def end_ns(self) -> int:
        return self.begin_ns + round(self.dur * US)

    @property
    def step(self) -> int:
        """The step that it is of; 0 where it is of none."""
        return _step_of(self.path)

    @property
    def region(self) -> str:
        """The innermost region."""
        inner = [name for name in self.path if not name.startswith(STEP)]
        return inner[-1] if inner else "other"


class _Events(BaseModel):
    model_config = ConfigDict(extra="ignore")

    traceEvents: list[Mapping[str, JsonValue]]  # noqa: N815 - the format's name


class _Activity(NamedTuple):
    """Something that a stream ran."""

    event: _Event
    call: _Event
    """What launched it."""
    stream: int

    @property
    def is_to_host(self) -> bool:
        return "DtoH" in self.event.name

    @property
    def num_bytes(self) -> int:
        return self.event.args.bytes if self.event.cat == "gpu_memcpy" else 0


class _Recorded(NamedTuple):
    """A record of an event, or a wait for all that a stream has."""

    stream: int
    call: _Event


class _StreamWait(NamedTuple):
    """A wait of a stream for an event."""

    call: _Event
    recorded: _Recorded
    held: _Activity
    """What the stream runs first behind the wait."""


def timeline_from(file: Path, *, level: str, num_steps: int) -> Timeline:
    """Make a timeline of what a profiler wrote into a file.

    Args:
        file: its regions are `forward`, `launch` and so on, in `step 1` and those that follow.
        level: what the host is told about lengths.
        num_steps: the steps that are shown, from 1.
    """
    found = _Events.model_validate_json(file.read_bytes()).traceEvents
    events = [
        _Event.model_validate(own)
        for own in found
        if own.get("ph") == "X" and own.get("cat") in _READ
    ]
    return _Export(events).timeline(level, num_steps)


class _Export:
    """The events of an export.

    Args:
        events: those that are read, with the times of their file.
    """

    def __init__(self, events: Sequence[_Event]) -> None:
        events = sorted(events, key=lambda own: (own.ts, -own.dur))
        marked = [
            own for own in events if own.cat == "user_annotation" and own.name.startswith(MARK)
        ]
        zero = marked[0].ts if marked else 0.0
        for own in events:
            own.ts -= zero
        self._regions = [(own.name.removeprefix(MARK), own.begin_ns, own.end_ns) for own in marked]
        """Regions of the host, each with its begin and end."""
        threads = {own.tid for own in marked}
        self._calls: dict[int, _Event] = {}
        """Calls of the thread that was marked, by their correlation."""
        self._ran: dict[int, list[_Activity]] = {}
        """What each stream ran."""
        for own in events:
            if own.cat in _CALLS and own.tid in threads and own.args.correlation is not None:
                own.path = tuple(
                    name for name, begin, end in self._regions if begin <= own.begin_ns < end
                )
                self._calls[own.args.correlation] = own
        self._syncs = [own for own in events if own.cat == "cuda_sync"]
        for own in events:
            call = self._calls.get(own.args.correlation or 0)
            if own.cat in _RAN and call is not None and own.args.stream is not None:
                self._ran.setdefault(own.args.stream, []).append(
                    _Activity(own, call, own.args.stream)
                )
        self._lanes = {stream: _lane(stream, own) for stream, own in self._ran.items()}
        self._stream_waits = [*self._waits_of_streams()]

    def timeline(self, level: str, num_steps: int) -> Timeline:
        """Cut the steps out."""
        steps = {name: times for name, *times in self._regions}
        begin_ns, end_ns = steps[f"{STEP}1"][0], steps[f"{STEP}{num_steps}"][1]
        crossed: Counter[str] = Counter()
        for stream, activities in self._ran.items():
            for own in activities:
                if own.is_to_host and begin_ns <= own.event.begin_ns < end_ns:
                    crossed[self._lanes[stream]] += own.num_bytes
        recorded = Timeline(
            level=level,
            lanes=(HOST, *dict.fromkeys(self._lanes[stream] for stream in sorted(self._ran))),
            spans=(*self._host_regions(), *self._host_waits()),
            arrows=(*self._stream_arrows(), *self._host_arrows()),
            gaps=(),
            begin_ns=begin_ns,
            end_ns=end_ns,
            num_steps=num_steps,
            bytes_to_host=crossed.total(),
            bytes_of_lengths=crossed[COPY],
        )
        return cut(recorded, [*self._operators()])

    def _waits_of_streams(self) -> Iterator[_StreamWait]:
        """List the waits of streams for events."""
        for own in self._syncs:
            if own.name == "Stream Wait Event":
                stream, call = own.args.stream, self._calls.get(own.args.correlation or 0)
                recorded, held = self._recorded(own.args), None
                if call is not None and stream is not None:
                    held = self._next(stream, call)
                if call is not None and recorded is not None and held is not None:
                    yield _StreamWait(call=call, recorded=recorded, held=held)

    def _waits_of_host(self) -> Iterator[tuple[_Event, _Recorded | None]]:
        """List the calls in which the host waits, each with what it waits for.

        That is an event, or all that a stream has; None: not known, or all of the device.
        """
        known = {own.args.correlation: own.args for own in self._syncs}
        for correlation, call in self._calls.items():
            if "Synchronize" in call.name:
                args = known.get(correlation, _Args())
                recorded = self._recorded(args)
                if recorded is None and args.stream is not None and args.stream >= 0:
                    recorded = _Recorded(stream=args.stream, call=call)
                yield call, recorded

    def _recorded(self, args: _Args) -> _Recorded | None:
        """Find the record of the event that is waited for; one of before is not known."""
        call = self._calls.get(args.wait_on_cuda_event_record_corr_id or 0)
        if call is None or args.wait_on_stream is None or args.wait_on_stream < 0:
            return None
        return _Recorded(stream=args.wait_on_stream, call=call)

    def _operators(self) -> Iterator[TimedOp]:
        for stream, activities in self._ran.items():
            ended_ns = activities[0].call.begin_ns - 1
            for own in activities:
                event = own.event
                yield TimedOp(
                    name=event.name,
                    lane=self._lanes[stream],
                    region=own.call.region,
                    step=own.call.step,
                    begin_ns=event.begin_ns,
                    end_ns=event.end_ns,
                    held_by=self._held_by(stream, own, ended_ns),
                    launched_ns=own.call.end_ns,
                    replayed="GraphLaunch" in own.call.name,
                    site=None,
                    num_bytes=own.num_bytes,
                )
                ended_ns = event.end_ns

    def _held_by(self, stream: int, own: _Activity, ended_ns: int) -> str:
        """Name what came last: its launch, an event of another stream, or its own one's end."""
        reasons = [(ended_ns, self._lanes[stream]), (own.call.end_ns, HOST)]
        for wait in self._stream_waits:
            if wait.held is own:
                point = self._point(wait.recorded)
                reasons += [] if point is None else [(point.time_ns, point.lane)]
        return max(reasons, key=lambda reason: reason[0])[1]

    def _host_regions(self) -> Iterator[Span]:
        for own in self._regions:
            name, begin_ns, end_ns = own
            outer = [
                each[0]
                for each in self._regions
                if each is not own and each[1] <= begin_ns and end_ns <= each[2]
            ]
            yield Span(
                lane=HOST,
                name=name,
                step=_step_of((*outer, name)),
                begin_ns=begin_ns,
                end_ns=end_ns,
                depth=len(outer),
            )

    def _host_waits(self) -> Iterator[Span]:
        for call, recorded in self._waits_of_host():
            lane = None if recorded is None else self._lanes.get(recorded.stream)
            yield Span(
                lane=HOST,
                name=f"wait for {WAITED_FOR[lane]}" if lane in WAITED_FOR else call.name,
                step=call.step,
                begin_ns=call.begin_ns,
                end_ns=call.end_ns,
                depth=len(call.path),
                is_wait=True,
                for_lane=lane,
            )

    def _stream_arrows(self) -> Iterator[Arrow]:
        for wait in self._stream_waits:
            point, lane = self._point(wait.recorded), self._lanes[wait.held.stream]
            if point is not None and point.lane != lane:
                yield arrow(point, lane, wait.call.region, wait.held.event.begin_ns)

    def _host_arrows(self) -> Iterator[Arrow]:
        for call, recorded in self._waits_of_host():
            point = None if recorded is None else self._point(recorded)
            if point is not None:
                yield arrow(point, HOST, call.region, call.end_ns)

    def _point(self, recorded: _Recorded) -> Point | None:
        """Say when an event was there: at the end of what its stream had been given by then."""
        activities, call = self._ran.get(recorded.stream, ()), recorded.call
        before = [own for own in activities if own.call.begin_ns < call.begin_ns]
        if not before:
            return None
        lane = self._lanes[recorded.stream]
        return Point(lane=lane, time_ns=before[-1].event.end_ns, region=call.region)

    def _next(self, stream: int, call: _Event) -> _Activity | None:
        """Find what a stream runs first of all that is launched behind a call."""
        activities = self._ran.get(stream, ())
        return next((own for own in activities if own.call.begin_ns > call.begin_ns), None)


def _step_of(path: Sequence[str]) -> int:
    steps = [int(name.removeprefix(STEP)) for name in path if name.startswith(STEP)]
    return steps[-1] if steps else 0


def _lane(stream: int, activities: Sequence[_Activity]) -> str:
    """Name a stream by what is launched on it most often."""
    votes: Counter[str] = Counter(filter(None, map(_vote, activities)))
    return votes.most_common(1)[0][0] if votes else f"stream {stream}"


def _vote(own: _Activity) -> str | None:
    path = own.call.path
    if "forward" in path or "resolve_future" in path:
        return FORWARD
    if _RESOLVES in path:
        return COPY if own.is_to_host else SCHEDULE
    if "build batch" in path:
        return SCHEDULE
    return HOST_COPY if "launch" in path and own.is_to_host else None
