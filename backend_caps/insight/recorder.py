"""The clock of a recording on the simulated device, and the regions that the host is in.

The clock is computed while the run goes on, from what the host launches, orders and waits for, and
in that order; when the simulated device really runs the work changes nothing here. An operator
begins as soon as the host has launched it, its stream has ended what came before, and what the
stream waits for is there. The host goes on by itself, but for its own waits.

Regions are functions of relay and runtime: a table of symbols, and a profile function. The runtime
has no hook for it; a renamed function fails this module's import.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import CodeType, FrameType

import backend_caps
from backend_caps.capability.kind import Phase, Role
from backend_caps.insight.dry_run import NAMES
from backend_caps.relay import FutureMap
from backend_caps.report.trace_documents import CostsDocument
from backend_caps.report.trace_timeline import BARRIER, PUBLISH, Arrow, Lane, Point, Span, TimedOp
from backend_caps.runtime.scheduler import Scheduler
from backend_caps.runtime.speculative.contexts import Contexts
from backend_caps.runtime.speculative.drafter import ModelDrafter
from backend_caps.runtime.speculative.ngram import NgramDrafter
from backend_caps.runtime.speculative.runner import SpeculativeDecoding, SpeculativeRunner
from backend_caps.runtime.speculative.tree import accepted, predict
from backend_caps.runtime.step import PlainRunner, StepLauncher
from backend_caps.simulator.queues import Marker, Op
from backend_caps.simulator.records import DeviceWatcher, Waited, WaitKind
from backend_caps.startup.graph_modes import GraphMode

_NO_REGION = "other"
CLOCK_SAYS = "the recording's, which counts chosen costs; nothing was measured"
"""What times on this clock mean."""
_PRODUCTS = frozenset(
    f"aten::{name}"
    for name in ("addmm", "bmm", "linear", "matmul", "mm", "scaled_dot_product_attention")
)
"""Operators that read weights, or a cache."""


COSTS = CostsDocument(
    python_call_ns=1_000,
    launch_ns=8_000,
    replay_ns=12_000,
    event_ns=1_000,
    op_ns=3_000,
    product_ns=24_000,
    copy_ns=6_000,
    bytes_per_ns=24,
)
"""The cost of each kind of work, in nanoseconds.

The numbers are chosen, and measured nowhere: round ones, of the order that a server with one GPU
has, and such that the device is busier than the host, as with a large model. An operator's cost
does not hang on its shapes, because the models that run are small and the servers that are meant
are not. So the picture says what waits for what; how long a server's step takes, and whether its
host keeps ahead, it does not say.
"""


def _length_ns(op: Op, costs: CostsDocument) -> int:
    """Return how long an operator runs; never 0, so that each has a visible slice."""
    num_bytes = op.bytes_to_host + op.bytes_to_device
    if num_bytes:
        return costs.copy_ns + num_bytes // costs.bytes_per_ns
    return costs.product_ns if op.name.partition(".")[0] in _PRODUCTS else costs.op_ns


@dataclass(slots=True, kw_only=True)
class _Stream:
    lane: str
    ready_ns: int = 0
    """When all work enqueued on the stream so far has ended."""
    held_by: str = ""
    """The lane whose work ends at `ready_ns`."""
    pending: list[tuple[Point, str]] = field(default_factory=list)
    """Points that the next operator waits for, each with the region of the wait."""


class RegionObserver:
    """Observes which functions, regions and forwards the host is in."""

    def called(self) -> None:
        """The host calls a function of relay or runtime."""

    def enter(self, name: str) -> None:
        """The host enters a region."""

    def leave(self) -> None:
        """The host leaves the innermost region."""

    def began(self, role: Role, phase: Phase) -> None:
        """The host enters a forward: a region that is named by its role and phase."""
        self.enter(NAMES.get((role, phase), f"{role.value} {phase.value}"))

    def ended(self, graph_mode: GraphMode) -> None:  # noqa: ARG002 - its operators say so
        """The host leaves the forward."""
        self.leave()


class Recorder(DeviceWatcher, RegionObserver):
    """Observe what the host launches, orders and waits for; compute when each begins and ends.

    Args:
        lanes: the names of streams, by handle.
        costs: how long each kind of work takes.
    """

    def __init__(self, lanes: Mapping[int, str], costs: CostsDocument = COSTS) -> None:
        self.costs = costs
        self.now_ns = 0
        """The host's clock."""
        self.step = 0
        """The step that the host works on."""
        self.ran: list[TimedOp] = []
        self.host_spans: list[Span] = []
        self.arrows: list[Arrow] = []
        self._lanes = dict(lanes)
        self._streams: dict[int, _Stream] = {}
        self._points: dict[Marker, Point] = {}
        self._open: list[tuple[str, int]] = []
        """Regions that the host is in, each with when it entered."""
        self._is_replaying = False

    @property
    def region(self) -> str:
        """The innermost region that the host is in."""
        return self._open[-1][0] if self._open else _NO_REGION

    @property
    def lanes(self) -> tuple[str, ...]:
        """The lanes of all streams that anything ran on, in the order of their handles."""
        used = {op.lane for op in self.ran}
        return tuple(lane for lane in self._lanes.values() if lane in used)

    def called(self) -> None:
        """The host calls a function of relay or runtime."""
        self.now_ns += self.costs.python_call_ns

    def enter(self, name: str) -> None:
        """The host enters a region."""
        self._open.append((name, self.now_ns))

    def leave(self) -> None:
        """The host leaves the innermost region."""
        name, begin_ns = self._open.pop()
        self._add(name, begin_ns)

    def launched(self, stream: int, op: Op) -> None:
        """Record an operator: it begins when the host, its stream and its waits allow."""
        if not self._is_replaying:
            self.now_ns += self.costs.launch_ns
        own = self._stream(stream)
        begin_ns = max(self.now_ns, own.ready_ns)
        ran = TimedOp(
            name=op.name,
            lane=own.lane,
            region=self.region,
            step=self.step,
            begin_ns=begin_ns,
            end_ns=begin_ns + _length_ns(op, self.costs),
            launched_ns=self.now_ns,
            replayed=self._is_replaying,
            site=f"{_in_package(op.site.file)}:{op.site.line}",
            num_bytes=op.bytes_to_host + op.bytes_to_device,
            held_by=Lane.HOST if begin_ns > own.ready_ns else own.held_by,
        )
        self.ran.append(ran)
        self.arrows += [point.arrow_to(own.lane, region, begin_ns) for point, region in own.pending]
        own.pending.clear()
        own.ready_ns, own.held_by = ran.end_ns, own.lane

    def replay_began(self, stream: int) -> None:  # noqa: ARG002 - its operators name it
        """Record that a graph is launched, as one."""
        self.now_ns += self.costs.replay_ns
        self._is_replaying = True

    def replay_ended(self) -> None:
        """Record that each operator from here on is launched by itself."""
        self._is_replaying = False

    def recorded(self, marker: Marker) -> None:
        """Record an event: it is ready when all work enqueued on its stream has ended."""
        self._pay_for_event()
        own = self._stream(marker.stream)
        time_ns = max(own.ready_ns, self.now_ns)
        self._points[marker] = Point(lane=own.lane, time_ns=time_ns, region=self.region)

    def waited(self, stream: int, marker: Marker) -> None:
        """Record that a stream waits for an event."""
        self._pay_for_event()
        own, point = self._stream(stream), self._points.get(marker)
        if point is None or point.lane == own.lane:
            return  # recorded before the recording began, or ordered by the stream itself
        own.pending.append((point, self.region))
        if point.time_ns > own.ready_ns:
            own.ready_ns, own.held_by = point.time_ns, point.lane

    def synchronized(self, cause: str, waited: Waited, marker: Marker | None) -> None:
        """The host waits: its clock advances to the end of the work that it waits for."""
        begin_ns = self.now_ns
        point = self._awaited(waited, marker)
        self.now_ns = max(begin_ns, point.time_ns)
        lane = None if waited.stream is None else point.lane
        what = cause if waited.kind is WaitKind.HIDDEN else Lane.brings(point.lane) or cause
        for_ = "hidden wait" if waited.kind is WaitKind.HIDDEN else "wait for"
        self._add(f"{for_} {what}", begin_ns, is_wait=True, for_lane=lane)
        self.arrows.append(point.arrow_to(Lane.HOST, self.region, self.now_ns))

    def _awaited(self, waited: Waited, marker: Marker | None) -> Point:
        if marker is not None and marker in self._points:
            return self._points[marker]
        if waited.stream is not None:
            own = self._stream(waited.stream)
        else:
            streams = self._streams.values()
            own = max(streams, key=lambda each: each.ready_ns, default=_Stream(lane=Lane.HOST))
        return Point(lane=own.lane, time_ns=own.ready_ns, region=self.region)

    def _pay_for_event(self) -> None:
        if not self._is_replaying:
            self.now_ns += self.costs.event_ns

    def _add(
        self, name: str, begin_ns: int, *, is_wait: bool = False, for_lane: str | None = None
    ) -> None:
        span = Span(
            lane=Lane.HOST,
            name=name,
            step=self.step,
            begin_ns=begin_ns,
            end_ns=self.now_ns,
            depth=len(self._open),
            is_wait=is_wait,
            for_lane=for_lane,
        )
        self.host_spans.append(span)

    def _stream(self, handle: int) -> _Stream:
        lane = self._lanes.setdefault(handle, f"stream {handle}")
        return self._streams.setdefault(handle, _Stream(lane=lane))


@cache
def _in_package(file: str) -> str:
    """Return the path of a file within its package: the same on every machine."""
    path = Path(file)
    top = path.parent
    while (top / "__init__.py").is_file():
        top = top.parent
    return path.relative_to(top).as_posix()


_Function = Callable[..., object]
_REGIONS: tuple[tuple[_Function, str], ...] = (
    (Scheduler._next_batch, "build batch"),  # noqa: SLF001 - what the host does, public or not
    (Scheduler._process, "results"),  # noqa: SLF001
    (StepLauncher.launch, "launch"),
    (StepLauncher.barrier, BARRIER),
    (StepLauncher.tokens, "tokens"),
    (FutureMap.publish, PUBLISH),
    (FutureMap.stash, "stash"),
    (FutureMap.resolve_seq_lens_cpu, "resolve_seq_lens_cpu"),
    (FutureMap.set_input_ids_sentinel, "set_input_ids_sentinel"),
    (FutureMap.resolve_future, "resolve_future"),
    (FutureMap.commit_lengths, "commit_lengths"),
    (SpeculativeDecoding.commit, "commit_lengths"),
    (PlainRunner.run, "forward"),
    (SpeculativeRunner.run, "forward"),
    (Contexts.of_step, "contexts"),
    (ModelDrafter.tree, "draft"),
    (NgramDrafter.tree, "draft"),
    (predict, "accept"),
    (accepted, "accept"),
    (ModelDrafter.follow_accepted, "draft_extend"),
    (ModelDrafter.follow_prompts, "draft prefill"),
)
REGIONS: Mapping[CodeType, str] = {inspect.unwrap(fn).__code__: name for fn, name in _REGIONS}
"""The region of each function that opens one, by its code."""
_ROOT = Path(backend_caps.__file__).parent
_CHARGED = tuple(f"{_ROOT / folder}/" for folder in ("relay", "runtime"))


@cache
def _is_charged(code: CodeType) -> bool:
    """Return whether a call of the code costs host time.

    A comprehension is no call in Python 3.12, and was one before; so none is.
    """
    return code.co_filename.startswith(_CHARGED) and not code.co_name.startswith("<")


Profile = Callable[[FrameType, str, object], None]
"""What `sys.setprofile` takes."""


def profile(observer: RegionObserver) -> Profile:
    """Make the profile function of an observer; it runs at every call and return, in C too."""

    def observe(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            code = frame.f_code
            if _is_charged(code):
                observer.called()
                if code in REGIONS:
                    observer.enter(REGIONS[code])
        elif event == "return" and frame.f_code in REGIONS:
            observer.leave()

    return observe


@contextmanager
def observed_regions(observer: RegionObserver) -> Iterator[None]:
    """Report this thread's calls and regions to an observer within a `with` block.

    A profile function that is set already is put back afterwards, and not called meanwhile.
    """
    before = sys.getprofile()
    sys.setprofile(profile(observer))
    try:
        yield
    finally:
        sys.setprofile(before)
