"""Graphs of the simulated device, shaped as `torch.cuda.CUDAGraph`.

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

from backend_caps.simulator.allocator import Pool
from backend_caps.simulator.errors import CaptureError, GraphStateError
from backend_caps.simulator.queues import Marker, Op
from backend_caps.simulator.recording import Await, Capture, Point, Reach, Step
from backend_caps.simulator.simulation import current
from backend_caps.simulator.sites import call_site
from backend_caps.simulator.streams import Stream, stream, synchronize


class CUDAGraph:
    """Device work that was recorded once and runs as often as it is replayed.

    Args:
        keep_graph: taken as torch takes it; there is nothing to instantiate.
    """

    def __init__(self, keep_graph: bool = False) -> None:  # noqa: ARG002
        self._capture: Capture | None = None
        self._pool = Pool()
        self._steps: tuple[tuple[int, Step], ...] | None = None
        self._branches: tuple[int, ...] = ()

    def capture_begin(self, pool: Pool | None = None, capture_error_mode: str = "global") -> None:  # noqa: ARG002
        """Record what the current stream is given from now on.

        Raises:
            GraphStateError: a capture goes on, or the graph has one.
        """
        simulation = current()
        if simulation.capture is not None or self._steps is not None:
            held = "a capture" if self._steps is not None else "no capture, but another goes on"
            raise GraphStateError(action="capture_begin", held=held)
        self._pool = self._pool if pool is None else pool
        self._capture = Capture(pool=self._pool, origin=simulation.current_stream)
        simulation.capture = self._capture

    def capture_end(self) -> None:
        """Record no more.

        Raises:
            GraphStateError: this graph's capture does not go on.
            CaptureError: a stream joined it, and its work is not waited for; the capture is over.
        """
        simulation = current()
        capture = self._capture
        if capture is None or simulation.capture is not capture:
            raise GraphStateError(action="capture_end", held="no capture that goes on")
        simulation.end_capture()
        self._capture = None
        if capture.unjoined:
            raise CaptureError(
                action=f"capture_end with work of stream {capture.unjoined[0]} left",
                site=str(call_site()),
                expected="a wait of the first stream for all that joined it was expected",
            )
        self._branches = tuple(capture.clocks)
        self._steps = tuple(capture.steps)

    def replay(self) -> None:
        """Put the recorded work on the current stream.

        Raises:
            GraphStateError: nothing was recorded.
        """
        if self._steps is None:
            raise GraphStateError(action="replay", held="no capture")
        simulation = current()
        simulation.refuse_in_capture("CUDAGraph.replay")
        simulation.watcher.replay_began(simulation.current_stream)
        origin, *others = self._branches
        handles = {origin: simulation.current_stream}
        handles |= {other: simulation.branch(place) for place, other in enumerate(others)}
        reached: dict[Point, Marker] = {}
        for captured_on, step in self._steps:
            handle = handles[captured_on]
            if isinstance(step, Op):
                simulation.enqueue(handle, step)
            elif isinstance(step, Reach):
                reached[step.point] = simulation.reach(handle, step.point)
            elif isinstance(step, Await):
                simulation.await_point(handle, step.point, reached[step.point])
            else:
                step(handle)
        simulation.watcher.replay_ended()

    def reset(self) -> None:
        """Forget the recorded work, and the memory that no tensor refers to."""
        self._steps = None
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
    with _sending_to(Stream() if stream is None else stream):
        cuda_graph.capture_begin(pool, capture_error_mode)
        try:
            yield
        except BaseException:
            current().end_capture()
            raise
        cuda_graph.capture_end()


def is_current_stream_capturing() -> bool:
    """Tell whether the current stream's work is recorded."""
    return current().capture_of(current().current_stream) is not None


_sending_to = stream
