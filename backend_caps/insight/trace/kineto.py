"""What `torch.profiler` exports, read: ranges and calls of the host, and what its streams ran.

The export is Chrome's format with the profiler's own categories: `user_annotation` are the regions
that were marked, `cuda_runtime` and `cuda_driver` calls of the host, `kernel`, `gpu_memcpy` and
`gpu_memset` what ran, `cuda_sync` waits of streams and of the host. What ran has the `correlation`
of the call that launched it; all that a graph ran has that of the graph's launch. A stream's wait
names the call that recorded its event.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, JsonValue

MARK = "backend-caps: "
"""Before the name of each region that is marked for a recording."""
STEP = "step "
"""Before the number of a step, in the name of its region."""
_CALLS = frozenset({"cuda_runtime", "cuda_driver"})
_RAN = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_READ = _CALLS | _RAN | {"cuda_sync", "user_annotation"}
_NS = 1000


class _Args(BaseModel):
    model_config = ConfigDict(extra="ignore")

    stream: int | None = None
    correlation: int | None = None
    bytes: int = 0
    wait_on_stream: int | None = None
    wait_on_cuda_event_record_corr_id: int | None = None


class _Event(BaseModel):
    model_config = ConfigDict(extra="ignore")

    cat: str
    name: str
    ts: float
    dur: float = 0.0
    tid: int | str = 0
    args: _Args = Field(default_factory=_Args)

    @property
    def begin_ns(self) -> int:
        return round(self.ts * _NS)

    @property
    def end_ns(self) -> int:
        return self.begin_ns + round(self.dur * _NS)


class _Export(BaseModel):
    model_config = ConfigDict(extra="ignore")

    traceEvents: list[Mapping[str, JsonValue]]  # noqa: N815 - the format's name


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """A region of the host."""

    name: str
    begin_ns: int
    end_ns: int

    def holds(self, at_ns: int) -> bool:
        """Tell whether it goes on at a time."""
        return self.begin_ns <= at_ns < self.end_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A call of CUDA by the host."""

    name: str
    begin_ns: int
    end_ns: int
    path: tuple[str, ...]
    """The regions that it lies in, from the outermost."""

    @property
    def step(self) -> int:
        """The step that it is of; 0 where it is of none."""
        steps = [int(name.removeprefix(STEP)) for name in self.path if name.startswith(STEP)]
        return steps[-1] if steps else 0

    @property
    def region(self) -> str:
        """The innermost region."""
        inner = [name for name in self.path if not name.startswith(STEP)]
        return inner[-1] if inner else "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """Something that a stream ran."""

    name: str
    stream: int
    begin_ns: int
    end_ns: int
    num_bytes: int
    call: Call
    """What launched it."""

    @property
    def is_to_host(self) -> bool:
        """Whether it copies from the device to the host."""
        return "DtoH" in self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A record of an event."""

    stream: int
    """Whose work it is behind."""
    call: Call


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamWait:
    """A stream's wait for an event."""

    stream: int
    call: Call
    recorded: Recorded


@dataclass(frozen=True, slots=True, kw_only=True)
class HostWait:
    """A call in which the host stands still."""

    call: Call
    recorded: Recorded | None
    """What it waits for: an event, or all that a stream has; None: not known, or all of the
    device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """What is told by an export, each kind in the order of time."""

    ranges: tuple[Range, ...]
    activities: tuple[Activity, ...]
    stream_waits: tuple[StreamWait, ...]
    host_waits: tuple[HostWait, ...]


def read_export(file: Path) -> Export:
    """Read what `torch.profiler` wrote into a file."""
    found = _Export.model_validate_json(file.read_bytes()).traceEvents
    events = [
        _Event.model_validate(own)
        for own in found
        if own.get("ph") == "X" and own.get("cat") in _READ
    ]
    events.sort(key=lambda own: (own.ts, -own.dur))
    marked = [own for own in events if own.cat == "user_annotation" and own.name.startswith(MARK)]
    ranges = tuple(
        Range(name=own.name.removeprefix(MARK), begin_ns=own.begin_ns, end_ns=own.end_ns)
        for own in marked
    )
    threads = {own.tid for own in marked}
    calls = dict(_calls(events, ranges, threads))
    return Export(
        ranges=ranges,
        activities=tuple(_activities(events, calls)),
        stream_waits=tuple(_stream_waits(events, calls)),
        host_waits=tuple(_host_waits(events, calls)),
    )


def _calls(
    events: Iterable[_Event], ranges: Iterable[Range], threads: Iterable[int | str]
) -> Iterator[tuple[int, Call]]:
    """List the calls of the thread that was marked, by their correlation."""
    for own in events:
        if own.cat in _CALLS and own.tid in threads and own.args.correlation is not None:
            path = tuple(each.name for each in ranges if each.holds(own.begin_ns))
            call = Call(name=own.name, begin_ns=own.begin_ns, end_ns=own.end_ns, path=path)
            yield own.args.correlation, call


def _activities(events: Iterable[_Event], calls: Mapping[int, Call]) -> Iterator[Activity]:
    for own in events:
        call = calls.get(own.args.correlation or 0)
        if own.cat in _RAN and call is not None and own.args.stream is not None:
            yield Activity(
                name=own.name,
                stream=own.args.stream,
                begin_ns=own.begin_ns,
                end_ns=own.end_ns,
                num_bytes=own.args.bytes if own.cat == "gpu_memcpy" else 0,
                call=call,
            )


def _stream_waits(events: Iterable[_Event], calls: Mapping[int, Call]) -> Iterator[StreamWait]:
    for own in events:
        if own.cat == "cuda_sync" and own.name == "Stream Wait Event":
            call, recorded = calls.get(own.args.correlation or 0), _recorded(own.args, calls)
            if call is not None and recorded is not None and own.args.stream is not None:
                yield StreamWait(stream=own.args.stream, call=call, recorded=recorded)


def _host_waits(events: Iterable[_Event], calls: Mapping[int, Call]) -> Iterator[HostWait]:
    """List the calls that wait, with what their record of synchronisation knows of them."""
    known = {own.args.correlation: own.args for own in events if own.cat == "cuda_sync"}
    for correlation, call in calls.items():
        if "Synchronize" in call.name:
            args = known.get(correlation, _Args())
            recorded = _recorded(args, calls)
            if recorded is None and args.stream is not None and args.stream >= 0:
                recorded = Recorded(stream=args.stream, call=call)
            yield HostWait(call=call, recorded=recorded)


def _recorded(args: _Args, calls: Mapping[int, Call]) -> Recorded | None:
    """Find the record of the event that is waited for; it is not known for one of before."""
    call = calls.get(args.wait_on_cuda_event_record_corr_id or 0)
    if call is None or args.wait_on_stream is None or args.wait_on_stream < 0:
        return None
    return Recorded(stream=args.wait_on_stream, call=call)
