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
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path

from pydantic import BaseModel, Field, JsonValue

from backend_caps.report.trace_timeline import US, Arrow, Lane, Point, Span, TimedOp, Timeline

MARK = "backend-caps: "
"""Before the name of each region that is marked for a recording."""
STEP = "step "
"""Before the number of a step, in the name of its region."""
_CALLS = frozenset({"cuda_runtime", "cuda_driver"})
_RAN = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_READ = _CALLS | _RAN | {"cuda_sync", "user_annotation"}
_RESOLVES = "resolve_seq_lens_cpu"


class _Args(BaseModel):
    """Arguments of an event; -1, as the profiler writes it, is no stream, call or record."""

    stream: int = -1
    correlation: int = -1
    bytes: int = 0
    wait_on_stream: int = -1
    wait_on_cuda_event_record_corr_id: int = -1


class _Event(BaseModel):
    """An event of the export; times count from the begin of the first region."""

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
        """The step that the event lies in; 0 where it lies in none."""
        return _step_of(self.path)

    @property
    def region(self) -> str:
        """The innermost region."""
        inner = [name for name in self.path if not name.startswith(STEP)]
        return inner[-1] if inner else "other"


class _Events(BaseModel):
    traceEvents: list[Mapping[str, JsonValue]]  # noqa: N815 - the format's name


@dataclass(slots=True, eq=False)
class _Activity:
    """A kernel, copy or fill that a stream ran."""

    event: _Event
    call: _Event
    """The CUDA call that launched it."""
    points: list[Point] = field(default_factory=list)
    """The events that its stream waited for before it, each where it was recorded."""

    @property
    def is_to_host(self) -> bool:
        return "DtoH" in self.event.name

    @property
    def num_bytes(self) -> int:
        return self.event.args.bytes if self.event.cat == "gpu_memcpy" else 0


def timeline_from(file: Path, *, level: str, num_steps: int) -> Timeline:
    """Read a timeline from a file that `torch.profiler` exported.

    Args:
        file: its regions are `forward`, `launch` and so on, in `step 1` and those that follow.
        level: the `host_seq_lens` that the steps ran with.
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
            if own.cat in _CALLS and own.tid in threads and own.args.correlation >= 0:
                own.path = tuple(
                    name for name, begin, end in self._regions if begin <= own.begin_ns < end
                )
                self._calls[own.args.correlation] = own
        for own in events:
            call = self._calls.get(own.args.correlation)
            if own.cat in _RAN and call is not None and own.args.stream >= 0:
                self._ran.setdefault(own.args.stream, []).append(_Activity(own, call))
        self._lanes = {stream: _lane(stream, own) for stream, own in self._ran.items()}
        self._syncs = [own for own in events if own.cat == "cuda_sync"]

    def timeline(self, level: str, num_steps: int) -> Timeline:
        """Cut the steps out."""
        steps = {name: times for name, *times in self._regions}
        begin_ns, end_ns = steps[f"{STEP}1"][0], steps[f"{STEP}{num_steps}"][1]
        crossed: Counter[str] = Counter()
        for stream, activities in self._ran.items():
            for own in activities:
                if own.is_to_host and begin_ns <= own.event.begin_ns < end_ns:
                    crossed[self._lanes[stream]] += own.num_bytes
        waits = [*self._host_waits()]
        recorded = Timeline(
            level=level,
            lanes=(Lane.HOST, *dict.fromkeys(self._lanes[stream] for stream in sorted(self._ran))),
            spans=(*self._host_regions(), *(span for span, _ in waits)),
            arrows=(*self._stream_waits(), *(arrow for _, arrow in waits if arrow is not None)),
            gaps=(),
            begin_ns=begin_ns,
            end_ns=end_ns,
            num_steps=num_steps,
            bytes_to_host=crossed.total(),
            bytes_of_lengths=crossed[Lane.COPY],
        )
        return recorded.cut([*self._operators()])

    def _stream_waits(self) -> Iterator[Arrow]:
        """List the waits of streams for events, and add each to the activity that it held up."""
        for own in self._syncs:
            call, point = self._calls.get(own.args.correlation), self._awaited(own.args)
            if own.name == "Stream Wait Event" and call is not None and point is not None:
                activities = self._ran.get(own.args.stream, ())
                behind = (each for each in activities if each.call.begin_ns > call.begin_ns)
                held, lane = next(behind, None), self._lanes.get(own.args.stream, "")
                if held is not None:
                    held.points.append(point)
                    if point.lane != lane:
                        yield point.arrow_to(lane, call.region, held.event.begin_ns)

    def _host_waits(self) -> Iterator[tuple[Span, Arrow | None]]:
        """List the calls in which the host waits: for an event, a stream, or all of the device."""
        known = {own.args.correlation: own.args for own in self._syncs}
        for correlation, call in self._calls.items():
            if "Synchronize" in call.name:
                args = known.get(correlation, _Args())
                stream, point = args.wait_on_stream, self._awaited(args)
                if stream < 0 or args.wait_on_cuda_event_record_corr_id not in self._calls:
                    stream, point = args.stream, self._point(args.stream, call)
                lane = self._lanes.get(stream)
                brought = Lane.brings(lane)
                span = Span(
                    lane=Lane.HOST,
                    name=f"wait for {brought}" if brought else call.name,
                    step=call.step,
                    begin_ns=call.begin_ns,
                    end_ns=call.end_ns,
                    depth=len(call.path),
                    is_wait=True,
                    for_lane=lane,
                )
                end = (Lane.HOST, call.region, call.end_ns)
                yield span, None if point is None else point.arrow_to(*end)

    def _awaited(self, args: _Args) -> Point | None:
        """Find where the awaited event was recorded; None of one from before the export."""
        record = self._calls.get(args.wait_on_cuda_event_record_corr_id)
        return None if record is None else self._point(args.wait_on_stream, record)

    def _point(self, stream: int, record: _Event) -> Point | None:
        """Return when an event was ready: at the end of what was enqueued on its stream before."""
        activities = self._ran.get(stream, ())
        before = [own for own in activities if own.call.begin_ns < record.begin_ns]
        if not before:
            return None
        lane = self._lanes[stream]
        return Point(lane=lane, time_ns=before[-1].event.end_ns, region=record.region)

    def _operators(self) -> Iterator[TimedOp]:
        """List what streams ran; the latest of launch, events and the stream itself held each."""
        for stream, activities in self._ran.items():
            lane, ended_ns = self._lanes[stream], activities[0].call.begin_ns - 1
            for own in activities:
                event, call = own.event, own.call
                reasons = [(ended_ns, lane), (call.end_ns, Lane.HOST)]
                reasons += [(point.time_ns, point.lane) for point in own.points]
                yield TimedOp(
                    name=event.name,
                    lane=lane,
                    region=call.region,
                    step=call.step,
                    begin_ns=event.begin_ns,
                    end_ns=event.end_ns,
                    held_by=max(reasons, key=itemgetter(0))[1],
                    launched_ns=call.end_ns,
                    replayed="GraphLaunch" in call.name,
                    site=None,
                    num_bytes=own.num_bytes,
                )
                ended_ns = event.end_ns

    def _host_regions(self) -> Iterator[Span]:
        for own in self._regions:
            name, begin_ns, end_ns = own
            outer = [
                each[0]
                for each in self._regions
                if each is not own and each[1] <= begin_ns and end_ns <= each[2]
            ]
            yield Span(
                lane=Lane.HOST,
                name=name,
                step=_step_of((*outer, name)),
                begin_ns=begin_ns,
                end_ns=end_ns,
                depth=len(outer),
            )


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
        return Lane.FORWARD
    if _RESOLVES in path:
        return Lane.COPY if own.is_to_host else Lane.SCHEDULE
    if "build batch" in path:
        return Lane.SCHEDULE
    return Lane.HOST_COPY if "launch" in path and own.is_to_host else None
