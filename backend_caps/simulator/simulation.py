"""One run of the simulated device: its queues, its memory and its findings.

There is one device, so there is one simulation at a time. Outside of any `simulate` block it is an
eager one without race checks, in which models are built and weights are loaded.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from backend_caps.simulator import records
from backend_caps.simulator.allocation import Allocator, Block, Capture, Lease, PinnedMemory, moment
from backend_caps.simulator.errors import SimulatorError, Site, call_site
from backend_caps.simulator.queues import (
    NO_BLOCKS,
    FoundBlocks,
    Marker,
    Op,
    Schedule,
    Wait,
    engine_of,
)

# As many as torch's own pools have.
_POOL_STREAMS = 32
_NOWHERE = Site("<freed>", 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSync:
    """A place where the host waited for the device."""

    cause: str
    """The operator or the method that waited."""
    site: Site
    """The line that called it."""
    waited: records.Waited
    """The kind of wait, and the stream that was waited for."""

    def __str__(self) -> str:
        return f"{self.cause} at {self.site}"


class Simulation:
    """The device in one run, with its findings.

    Args:
        schedule: the order that work runs in.
        check_races: feed torch's stream sanitizer. Blocks are then kept until the run ends, and
            none is handed out twice, because a reused address looks like a race.
    """

    def __init__(self, schedule: Schedule, *, check_races: bool = False) -> None:
        self.schedule = schedule
        self.pinned = PinnedMemory()
        self.detector = records.RaceDetector(is_on=check_races)
        self.engine = engine_of(schedule, self._findings)
        self.capture: Capture | None = None
        self.current_stream = 0
        self._counts = records.Counts()
        self.hidden_syncs: list[HostSync] = []
        """Operators that made the host wait: item, nonzero, a copy that blocks."""
        self.host_waits: list[HostSync] = []
        """Calls of synchronize, of streams, events and the device."""
        self.watcher = records.DeviceWatcher()
        """Gets a callback at each launch, order and wait; by default a no-op."""
        self._polled_after = (0, 0, 0)
        # Markers that a source line has polled since, and whether that loop was noted as a wait.
        self._polled: dict[tuple[Marker, Site], bool] = {}
        self._allocator = Allocator(self._free_block, self.engine.mark, keeps_blocks=check_races)
        self._num_drawn = 0
        self.engine.queue(0)

    @property
    def races(self) -> tuple[records.Race, ...]:
        """Pairs of accesses without an order between them; empty without `check_races`."""
        return self.detector.races()

    @property
    def counts(self) -> records.Counts:
        """Counts so far; subtract an earlier copy for those of a span."""
        return self._counts.copy()

    @property
    def num_live_blocks(self) -> int:
        """Blocks that tensors refer to; after a run, what it leaked."""
        return self._allocator.num_live

    @property
    def num_live_bytes(self) -> int:
        """Bytes of these blocks."""
        return self._allocator.num_live_bytes

    def require_clean(self) -> None:
        """Raise where races were found.

        Raises:
            SimulatorError: with the schedule that replays them.
        """
        findings = self._findings()
        if findings:
            faults = "1 fault" if len(findings) == 1 else f"{len(findings)} faults"
            raise SimulatorError(
                "dirty-run",
                f"schedule {self.schedule} found {faults}, none was expected: "
                f"{'; '.join(findings)}. Replay it by Schedule.parse({str(self.schedule)!r}).",
            )

    def draw_stream(self) -> int:
        """Return the next stream of the pool, which reuses handles round-robin as torch's does."""
        handle = self._num_drawn % _POOL_STREAMS + 1
        self._num_drawn += 1
        return self.engine.queue(handle).handle

    def launch(self, op: Op) -> None:
        """Put work on the current stream, or into the graph that it is captured in."""
        capture = self.capture_of(self.current_stream)
        if capture is not None:
            capture.add(self.current_stream, op)
        else:
            self.enqueue(self.current_stream, op)

    def enqueue(self, handle: int, op: Op) -> None:
        """Put work on a stream, and run the work that the schedule allows."""
        self._counts.num_ops += 1
        self.watcher.launched(handle, op)
        if op.bytes_to_host or op.bytes_to_device:
            self.count_copy(to_host=op.bytes_to_host, to_device=op.bytes_to_device, handle=handle)
        found = None
        if op.finds_blocks:
            found = FoundBlocks(moment())
            op = replace(op, work=partial(op.work, found))
        self.detector.launch(handle, op.name, op.site, op.reads, op.writes, found)
        self.engine.append(handle, op)
        self.engine.after_launch()

    def count_copy(
        self, *, to_host: int = 0, to_device: int = 0, handle: int | None = None
    ) -> None:
        """Count bytes that cross, on the current stream by default; a copy of no bytes is none."""
        counts = self._counts
        counts.num_copies_to_host += bool(to_host)
        counts.num_copies_to_device += bool(to_device)
        counts.bytes_to_host += to_host
        counts.bytes_to_device += to_device
        if to_host:
            counts.bytes_to_host_on[self.current_stream if handle is None else handle] += to_host

    def allocate(self, num_bytes: int) -> Lease:
        """Allocate memory of the current stream, or of the graph that it is captured in."""
        capture = self.capture_of(self.current_stream)
        pool = self._allocator.pool if capture is None else capture.pool
        return self._allocator.allocate(num_bytes, self.current_stream, pool)

    def capture_of(self, handle: int) -> Capture | None:
        """Return the capture that a stream's work goes into."""
        capture = self.capture
        return capture if capture is not None and handle in capture.clocks else None

    def end_capture(self) -> None:
        """End the capture, and release its blocks that other streams used."""
        self.capture = None
        self._allocator.end_capture()

    def branch(self, place: int) -> int:
        """Return the stream of a replayed graph's branch; its handle is outside of the pool."""
        return self.engine.queue(_POOL_STREAMS + 1 + place).handle

    def record(self, handle: int, *, counts: bool = True) -> Marker:
        """Put the marker of an event at the end of a stream's work.

        A point of a graph at a replay is one that does not count.
        """
        self._counts.num_event_records += counts
        marker = self.engine.mark(handle)
        self.detector.record(marker.serial, handle)
        self.watcher.recorded(marker)
        return marker

    def wait(self, handle: int, marker: Marker, *, counts: bool = True) -> None:
        """Make a stream wait for the marker of an event, or of a point that does not count."""
        self._counts.num_event_waits += counts
        self.detector.wait(handle, marker.serial)
        self.watcher.waited(handle, marker)
        if not marker.is_done:
            self.engine.append(handle, Wait(marker))

    def query_stream(self, handle: int) -> bool:
        """Return whether a stream's work has run; if not, the device runs a little."""
        is_done = self._query(self.engine.tail(handle), records.WaitKind.STREAM, "Stream.query")
        if is_done:
            self.detector.synchronize_stream(handle)
        return is_done

    def query_marker(self, marker: Marker) -> bool:
        """Return whether an event's marker was passed; if not, the device runs a little."""
        is_done = self._query(marker, records.WaitKind.EVENT, "Event.query")
        if is_done:
            self.detector.synchronize_event(marker.serial)
        return is_done

    def _query(self, marker: Marker, kind: records.WaitKind, method: str) -> bool:
        """Return whether a marker was passed, and note a loop that polls it as one host wait."""
        was_done = marker.is_done
        counts = self._counts
        launched = counts.num_ops, counts.num_event_records, counts.num_event_waits
        # Work since the last poll means that the host is not in a loop that waits.
        if launched != self._polled_after:
            self._polled.clear()
            self._polled_after = launched
        poll = marker, call_site()
        if self._polled.get(poll) is False:
            self._polled[poll] = True
            self._note_sync(
                f"{method}, again and again", records.Waited(kind, marker.stream), marker
            )
        elif not was_done:
            self._polled.setdefault(poll, False)
        if not was_done:
            self.engine.advance(marker)
        return was_done

    def synchronize_stream(self, handle: int, cause: str, kind: records.WaitKind) -> None:
        """Make the host wait for all work of a stream."""
        self._note_sync(cause, records.Waited(kind, handle), None)
        self.detector.synchronize_stream(handle)
        self.engine.wait_for(self.engine.mark(handle))

    def wait_for_current(self, cause: str) -> None:
        """Make the host wait for the current stream, in an operator that needs its results."""
        self.synchronize_stream(self.current_stream, cause, records.WaitKind.HIDDEN)

    def synchronize_marker(self, marker: Marker, cause: str) -> None:
        """Make the host wait for what an event is bound to."""
        self._note_sync(cause, records.Waited(records.WaitKind.EVENT, marker.stream), marker)
        self.detector.synchronize_event(marker.serial)
        self.engine.wait_for(marker)

    def synchronize_device(self, cause: str) -> None:
        """Make the host wait for everything; a no-op once the run is over."""
        if self._allocator.is_closed:
            return
        self._note_sync(cause, records.Waited(records.WaitKind.DEVICE, None), None)
        self.drain()

    def drain(self) -> None:
        """Run everything that was launched."""
        self.detector.synchronize_device(tuple(self.engine.queues))
        for handle in tuple(self.engine.queues):
            self.engine.wait_for(self.engine.mark(handle))

    def close(self) -> None:
        """End the run: tensors that outlive it free no blocks, and waits for its events return."""
        self._allocator.is_closed = True
        self.engine.abandon()

    def refuse_in_capture(self, action: str) -> None:
        """Raise where a graph is captured.

        Raises:
            SimulatorError: as CUDA does for what a graph cannot hold.
        """
        if self.capture is not None:
            expected = "only device work was expected, which a replay repeats without the host"
            raise SimulatorError.capture(action, expected)

    def _findings(self) -> tuple[str, ...] | None:
        """Return each race once, in words; None without `check_races`."""
        if not self.detector.is_on:
            return None
        return tuple(dict.fromkeys(str(race) for race in self.races))

    def _note_sync(self, cause: str, waited: records.Waited, marker: Marker | None) -> None:
        self.refuse_in_capture(cause)
        self.watcher.synchronized(cause, waited, marker)
        self._counts.waits[waited] += 1
        syncs = self.hidden_syncs if waited.kind is records.WaitKind.HIDDEN else self.host_waits
        syncs.append(HostSync(cause=cause, site=call_site(), waited=waited))

    def _free_block(self, block: Block) -> None:
        """Enqueue the poisoning of a block on its stream, and run no work."""
        poisoning = Op("free", block.poison, ticks=0, site=_NOWHERE)
        if self.detector.is_on:
            poisoning.site, poisoning.writes = call_site(), frozenset((block.serial,))
        capture = self.capture
        if block.pool is self._allocator.pool:
            self.detector.launch(block.stream, "free", poisoning.site, NO_BLOCKS, poisoning.writes)
            self.engine.append(block.stream, poisoning)
        elif capture is not None and block.pool is capture.pool:
            handle = block.stream if block.stream in capture.clocks else capture.origin
            capture.steps.append((handle, poisoning))


class _Device:
    """The process-wide device, because torch's device module has no context to hold one."""

    def __init__(self) -> None:
        self.default = Simulation(Schedule())
        self.simulation = self.default


DEVICE = _Device()


def current() -> Simulation:
    """Return the simulation that runs now."""
    return DEVICE.simulation
