"""Streams, events and graphs of the simulated device, shaped as `torch.cuda`'s.

A capture records device work and runs none of it; a replay puts the work on the current stream and
runs no host code. So a host value that was read for the capture is baked in, and a tensor that was
made in it lies where it lay: in the graph's own memory, for as long as the graph lives. Random
numbers are those of the capture at every replay.

A stream joins a capture where it waits for an event of it, and becomes a branch of the graph. At a
replay each branch has a queue of its own, so its work runs in any order that the recorded waits
leave open. As on CUDA, a capture does not end before its first stream waits for every branch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NoReturn

import torch

from backend_caps.simulator.allocation import Capture, Pool
from backend_caps.simulator.errors import SimulatorError
from backend_caps.simulator.queues import Marker, Op
from backend_caps.simulator.records import WaitKind
from backend_caps.simulator.simulation import Simulation, current

DeviceLike = torch.device | str | int | None


class Stream:
    """A stream of the pool, which hands out 32 handles in turns, as torch's pools do.

    Args:
        device: the device; there is one.
        priority: taken as torch takes it; work has no priority here.
        handle: the stream of this handle, instead of the pool's next.
    """

    def __init__(
        self,
        device: DeviceLike = None,  # noqa: ARG002
        priority: int = 0,  # noqa: ARG002
        *,
        handle: int | None = None,
    ) -> None:
        self.handle = current().draw_stream() if handle is None else handle

    @property
    def device(self) -> torch.device:
        """The device that it is a stream of."""
        return torch.device("sim", 0)

    def wait_event(self, event: Event) -> None:
        """Make this stream wait for what an event was last recorded at."""
        event.wait(self)

    def wait_stream(self, stream: Stream) -> None:
        """Make this stream wait for all work that another has now."""
        stream.record_event().wait(self)

    def record_event(self, event: Event | None = None) -> Event:
        """Record an event, or a new one, at the end of this stream's work."""
        event = Event() if event is None else event
        event.record(self)
        return event

    def synchronize(self) -> None:
        """Make the host wait for all work of this stream."""
        current().synchronize_stream(self.handle, "Stream.synchronize", WaitKind.STREAM)

    def query(self) -> bool:
        """Return whether all work of this stream has run; at each False the device runs a little.

        A line that polls again with nothing launched in between counts as a host wait.
        """
        return current().query_stream(self.handle)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.handle == self.handle

    def __hash__(self) -> int:
        return hash(self.handle)

    def __repr__(self) -> str:
        return f"<sim stream {self.handle}>"


@dataclass(slots=True, eq=False)
class Point:
    """A point in a captured stream's work that another captured stream waits for."""

    capture: Capture
    """The capture that it is in."""
    clock: dict[int, int]
    """How much of each captured stream's work is before it."""
    marker: Marker | None = None
    """Where the last replay has reached it."""

    def record(self, handle: int) -> None:
        """Reach the point in a replay: what an event's record leaves in a graph."""
        self.marker = current().record(handle, counts=False)

    def wait(self, handle: int) -> None:
        """Wait for the point in a replay: an edge between two branches of a graph."""
        assert self.marker is not None, "a replay records a point before it waits for it"
        current().wait(handle, self.marker, counts=False)


class Event:
    """A point in a stream's work; a wait binds to the version that was recorded last.

    Args:
        enable_timing: taken as torch takes it; the simulated clock always runs.
        blocking: taken as torch takes it.
        interprocess: taken as torch takes it; there is one process.
        external: recorded in a capture, it is recorded again at every replay.
    """

    def __init__(
        self,
        enable_timing: bool = False,  # noqa: ARG002
        blocking: bool = False,  # noqa: ARG002
        interprocess: bool = False,  # noqa: ARG002
        external: bool = False,
    ) -> None:
        self._is_external = external
        self._marker: Marker | None = None
        self._captured: Point | None = None

    def record(self, stream: Stream | None = None) -> None:
        """Move the point to the end of a stream's work, by default the current one's."""
        handle = current().current_stream if stream is None else stream.handle
        capture = current().capture_of(handle)
        if capture is None:
            self._record_on(handle)
        elif self._is_external:
            capture.add(handle, self._record_on)
        else:
            self._captured = Point(capture, dict(capture.clocks[handle]))
            capture.steps.append((handle, self._captured.record))

    def wait(self, stream: Stream | None = None) -> None:
        """Make a stream wait for the point; before the first record it is no wait.

        Raises:
            SimulatorError: a capture and what is outside of it would wait for each other.
        """
        simulation = current()
        handle = simulation.current_stream if stream is None else stream.handle
        capture = simulation.capture_of(handle)
        if self._captured is not None:
            point = self._captured
            if point.capture is not simulation.capture:
                self._refuse("its event is in a capture that has ended")
            point.capture.join(handle, point.clock)
            point.capture.steps.append((handle, point.wait))
        elif capture is None:
            self._wait_on(handle)
        elif self._is_external:
            capture.add(handle, self._wait_on)
        elif self._marker is not None:
            self._refuse("its event is outside of the capture")

    def synchronize(self) -> None:
        """Make the host wait for the point."""
        simulation = current()
        simulation.refuse_in_capture("Event.synchronize")
        if self._marker is not None:
            simulation.synchronize_marker(self._marker, "Event.synchronize")

    def query(self) -> bool:
        """Return whether the point was passed, as it is before the first record.

        At each False the device runs a little. A line that polls again with nothing launched in
        between counts as a host wait.
        """
        return self._marker is None or current().query_marker(self._marker)

    def elapsed_time(self, end_event: Event) -> float:
        """Return the operators that ran between two events: the simulated clock has no other tick.

        Raises:
            RuntimeError: as torch does, where one of them was not passed.
        """
        start, end = self._marker, end_event._marker
        if start is None or end is None or not (start.is_done and end.is_done):
            raise RuntimeError("elapsed_time() needs two events that were recorded and passed")
        return float(end.tick - start.tick)

    def _record_on(self, handle: int) -> None:
        self._captured = None
        self._marker = current().record(handle)

    def _wait_on(self, handle: int) -> None:
        if self._marker is not None:
            current().wait(handle, self._marker)

    def _refuse(self, reason: str) -> NoReturn:
        action = f"a wait for an event ({reason})"
        expected = "an event of the capture, or an external one, was expected"
        raise SimulatorError.capture(action, expected)


def current_stream(device: DeviceLike = None) -> Stream:  # noqa: ARG001
    """Return the stream that work goes to."""
    return Stream(handle=current().current_stream)


def default_stream(device: DeviceLike = None) -> Stream:  # noqa: ARG001
    """Return the stream that work goes to by default."""
    return Stream(handle=0)


def set_stream(stream: Stream) -> None:
    """Send work to a stream."""
    current().current_stream = stream.handle


class StreamContext:
    """Sends work to a stream within a `with` block, as often as it is entered.

    Args:
        stream: where to; None leaves it where it goes.
    """

    def __init__(self, stream: Stream | None) -> None:
        self._stream = stream
        self._before: list[int] = []

    def __enter__(self) -> None:
        simulation = current()
        self._before.append(simulation.current_stream)
        if self._stream is not None:
            simulation.current_stream = self._stream.handle

    def __exit__(self, *_: object) -> None:
        current().current_stream = self._before.pop()


stream = StreamContext


def synchronize(device: DeviceLike = None, *, of: Simulation | None = None) -> None:  # noqa: ARG001
    """Make the host wait for everything of a simulation, by default of the one that runs."""
    (of or current()).synchronize_device("synchronize")


class CUDAGraph:
    """Device work that was recorded once and runs as often as it is replayed.

    Args:
        keep_graph: taken as torch takes it; there is nothing to instantiate.
    """

    def __init__(self, keep_graph: bool = False) -> None:  # noqa: ARG002
        self._capture: Capture | None = None
        self._pool = Pool()
        self._captured: Capture | None = None

    def capture_begin(self, pool: Pool | None = None, capture_error_mode: str = "global") -> None:  # noqa: ARG002
        """Record what the current stream is given from now on.

        Raises:
            SimulatorError: a capture goes on, or the graph has one.
        """
        simulation = current()
        if simulation.capture is not None or self._captured is not None:
            held = "a capture" if self._captured is not None else "no capture, but another goes on"
            raise SimulatorError.graph_state("capture_begin", held)
        self._pool = self._pool if pool is None else pool
        self._capture = Capture(pool=self._pool, origin=simulation.current_stream)
        simulation.capture = self._capture

    def capture_end(self) -> None:
        """Record no more.

        Raises:
            SimulatorError: this graph's capture does not go on; or a stream joined it, and its
                work is not waited for, and the capture is over.
        """
        simulation = current()
        capture = self._capture
        if capture is None or simulation.capture is not capture:
            raise SimulatorError.graph_state("capture_end", "no capture that goes on")
        simulation.end_capture()
        self._capture = None
        if capture.unjoined:
            raise SimulatorError.capture(
                f"capture_end with work of stream {capture.unjoined[0]} left",
                "a wait of the first stream for all that joined it was expected",
            )
        self._captured = capture

    def replay(self) -> None:
        """Put the recorded work on the current stream.

        Raises:
            SimulatorError: nothing was recorded.
        """
        captured = self._captured
        if captured is None:
            raise SimulatorError.graph_state("replay", "no capture")
        simulation = current()
        simulation.refuse_in_capture("CUDAGraph.replay")
        simulation.watcher.replay_began(simulation.current_stream)
        origin, *others = captured.clocks
        handles = {origin: simulation.current_stream}
        handles |= {other: simulation.branch(place) for place, other in enumerate(others)}
        for captured_on, step in captured.steps:
            if isinstance(step, Op):
                simulation.enqueue(handles[captured_on], step)
            else:
                step(handles[captured_on])
        simulation.watcher.replay_ended()

    def reset(self) -> None:
        """Forget the recorded work, and the memory that no tensor refers to."""
        self._captured = None
        self._pool = Pool()

    def pool(self) -> Pool:
        """Return the graph's memory, for another graph to share."""
        return self._pool


def graph_pool_handle() -> Pool:
    """Return memory that several graphs may share."""
    return Pool()


def memory_snapshot(pool: Pool) -> list[dict[str, int]]:
    """List what a graph's memory has of the device, as torch does: one segment."""
    return [{"total_size": pool.num_bytes}]


@contextmanager
def graph(
    cuda_graph: CUDAGraph,
    pool: Pool | None = None,
    stream: Stream | None = None,
    capture_error_mode: str = "global",
) -> Iterator[None]:
    """Capture into a graph what runs in a `with` block, on a stream of its own.

    Sync: the whole device, before the capture, as torch does.
    """
    synchronize()
    with StreamContext(Stream() if stream is None else stream):
        cuda_graph.capture_begin(pool, capture_error_mode)
        try:
            yield
        except BaseException:
            current().end_capture()
            raise
        cuda_graph.capture_end()


def is_current_stream_capturing() -> bool:
    """Return whether the current stream's work is captured."""
    return current().capture_of(current().current_stream) is not None
