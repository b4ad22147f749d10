"""Records of a run: counts, the callbacks of a watcher, and races.

Races are found by torch's stream sanitizer, to which launches are passed by hand.
`torch.cuda._sanitizer` is private, and written for CUDA: only this module imports it. Memory is
identified by the serial number of its block, so accesses to disjoint parts of one block conflict.
The host is one more stream, which accesses pinned memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from functools import partial, wraps
from typing import Concatenate, NamedTuple, ParamSpec, Self, cast

from torch.cuda._sanitizer import Access as UpstreamAccess
from torch.cuda._sanitizer import EventHandler, UnsynchronizedAccessError

from backend_caps.simulator.allocation import PinnedMemory
from backend_caps.simulator.errors import Site
from backend_caps.simulator.queues import Blocks, FoundBlocks, Marker, Op


class WaitKind(Enum):
    """What made the host wait."""

    STREAM = "stream"
    """`synchronize` of a stream, or a loop that polls its `query`."""
    EVENT = "event"
    """`synchronize` of an event that was recorded, or a loop that polls its `query`."""
    DEVICE = "device"
    """`synchronize` of the whole device."""
    HIDDEN = "hidden"
    """An operator that has to know a number, or a copy that blocks."""


class Waited(NamedTuple):
    """A kind of host wait, and the stream that was waited for."""

    kind: WaitKind
    """What made the host wait."""
    stream: int | None
    """The handle of the stream whose work was waited for; None is the whole device."""

    def __str__(self) -> str:
        return self.kind.value if self.stream is None else f"{self.kind.value} {self.stream}"


@dataclass(slots=True, kw_only=True)
class Counts:
    """Counts of a run up to a moment, or between two moments: `later - earlier`."""

    num_ops: int = 0
    """Operators launched, copies among them; a replay launches each of its graph's."""
    num_copies_to_host: int = 0
    """Copies from the device to the host."""
    num_copies_to_device: int = 0
    """Copies from the host to the device."""
    bytes_to_host: int = 0
    """Bytes that crossed from the device to the host, numbers that the host read among them."""
    bytes_to_device: int = 0
    """Bytes that crossed from the host to the device."""
    num_event_records: int = 0
    """Events recorded on a stream; `wait_stream` records one."""
    num_event_waits: int = 0
    """Waits of a stream for an event that was recorded; `wait_stream` is one."""
    waits: Counter[Waited] = field(default_factory=Counter)
    """Waits of the host, by kind and stream; no zeros."""
    bytes_to_host_on: Counter[int] = field(default_factory=Counter)
    """`bytes_to_host` by the handle of the stream that they crossed on."""

    @property
    def num_host_waits(self) -> int:
        """All waits of the host, hidden ones too."""
        return sum(self.waits.values())

    @property
    def num_hidden_syncs(self) -> int:
        """Waits of the host that no `synchronize` shows."""
        return self.num_waits_of(WaitKind.HIDDEN)

    def num_waits_of(self, kind: WaitKind) -> int:
        """Count the waits of one kind, whatever their streams."""
        return sum(count for waited, count in self.waits.items() if waited.kind is kind)

    def copy(self) -> Counts:
        """Return a copy, which later work does not change."""
        return replace(self, waits=self.waits.copy(), bytes_to_host_on=self.bytes_to_host_on.copy())

    def __sub__(self, earlier: Self) -> Counts:
        names = [field.name for field in fields(self)]
        return Counts(**{name: getattr(self, name) - getattr(earlier, name) for name in names})


class DeviceWatcher:
    """Callbacks in the order of the host's calls, whenever the schedule runs the work."""

    def launched(self, stream: int, op: Op) -> None:
        """Called when work is put on a stream; a graph's work at each of its replays."""

    def replay_began(self, stream: int) -> None:
        """Called before a replay: all launches until `replay_ended` are one launch on a stream."""

    def replay_ended(self) -> None:
        """Called when the replay is enqueued."""

    def recorded(self, marker: Marker) -> None:
        """Called when an event is recorded at the end of the marker's stream."""

    def waited(self, stream: int, marker: Marker) -> None:
        """Called when a stream waits for an event."""

    def synchronized(self, cause: str, waited: Waited, marker: Marker | None) -> None:
        """Called when the host waits: for a marker; for all of a stream, or of the device."""


HOST = -1
"""The host's stream handle, and the name of its event: those of markers are positive."""
# Weights are read at every step and never written, so their list of reads would grow for ever.
_MOST_READS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """One side of a race."""

    operator: str
    """What was launched, or what the host did."""
    stream: int
    """The handle of the stream; `HOST` is the host."""
    site: Site
    """Where it was launched."""
    is_write: bool
    """Whether it writes the block."""

    def __str__(self) -> str:
        kind = "write" if self.is_write else "read"
        where = "the host" if self.stream == HOST else f"stream {self.stream}"
        return f"{kind} by {self.operator} on {where} at {self.site}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Race:
    """Two accesses to one block without an order between them, one of them a write."""

    block: int
    """The block's serial number."""
    first: Access
    """The access that was launched first."""
    second: Access
    """The access that was launched next."""

    def __str__(self) -> str:
        return f"race on block {self.block}: {self.first}, then {self.second}"


P = ParamSpec("P")
Step = Callable[Concatenate["RaceDetector", P], None]


def _later(take_in: Step[P]) -> Step[P]:
    """Queue a step of the trace until `races` is called, where races are looked for."""

    @wraps(take_in)
    def put_off(self: RaceDetector, *args: P.args, **kwargs: P.kwargs) -> None:
        if self.is_on:
            self.trace.append(partial(take_in, self, *args, **kwargs))

    return cast("Step[P]", put_off)


class RaceDetector:
    """Find pairs of accesses without an order between them.

    The steps of a run are queued, and passed to the sanitizer later in a thread with a short stack:
    the sanitizer records the whole stack at every launch, which is most of its cost.

    Args:
        is_on: whether races are looked for; if not, no step is queued.
    """

    def __init__(self, *, is_on: bool) -> None:
        self.is_on = is_on
        self.trace: list[Callable[[], None]] = []
        """Steps that the sanitizer has not got yet."""
        self._searches: list[tuple[int, FoundBlocks]] = []
        """Places in the trace of launches that find blocks when they run."""
        self._races: list[Race] = []
        self._handler = EventHandler()
        self._launches: dict[int, tuple[str, Site]] = {}
        self._order = self._handler.syncs
        self._order.create_stream(HOST)
        self._order.create_event(HOST)

    def races(self) -> tuple[Race, ...]:
        """Return the races of the run so far.

        Of a launch that has yet to find blocks, those are missing until it has run.
        """
        if self.trace:
            with ThreadPoolExecutor(max_workers=1) as executor:
                return executor.submit(self._run_trace).result()
        return tuple(self._races)

    def _run_trace(self) -> tuple[Race, ...]:
        """Pass on the steps before the first launch that has yet to find blocks.

        The others are passed to a copy of the sanitizer: a step that it has got cannot be changed.
        """
        incomplete = (place for place, found in self._searches if not found.is_complete)
        num_known = next(incomplete, len(self.trace))
        steps, self.trace = self.trace[:num_known], self.trace[num_known:]
        self._searches = [(at - num_known, own) for at, own in self._searches if at >= num_known]
        for step in steps:
            step()
        if not self.trace:
            return tuple(self._races)
        preview = deepcopy(self)
        for step in preview.trace:
            step()
        return tuple(preview._races)  # noqa: SLF001 - a copy's own

    def launch(
        self,
        stream: int,
        name: str,
        site: Site,
        reads: Blocks,
        writes: Blocks,
        found: FoundBlocks | None = None,
    ) -> None:
        """Add a launch, or an access of the host to pinned memory."""
        if self.is_on and found is not None:
            self._searches.append((len(self.trace), found))
        self._launch(stream, name, site, reads, writes, found)

    @_later
    def _launch(
        self,
        stream: int,
        name: str,
        site: Site,
        reads: Blocks,
        writes: Blocks,
        found: FoundBlocks | None,
    ) -> None:
        if found is not None:
            reads, writes = reads | found.reads, writes | found.writes
        self._know(stream)
        if stream != HOST and any(map(PinnedMemory.owns, reads | writes)):
            self._wait_for_host(stream)
        errors = self._handler._handle_kernel_launch(  # noqa: SLF001
            stream,
            set(reads - writes),
            set(writes),
            set(),
            name,
            {block: [] for block in reads | writes},
        )
        self._launches[self._handler.seq_num] = (name, site)
        for error in errors:
            assert isinstance(error, UnsynchronizedAccessError), f"the sanitizer found {error!r}"
            first, second = map(self._access, (error.previous_access, error.current_access))
            self._races.append(Race(block=error.data_ptr, first=first, second=second))
        for block in reads:
            self._forget_early_reads(block)

    @_later
    def record(self, event: int, stream: int) -> None:
        """Add the record of an event, under a number that is new at each record."""
        self._know(stream)
        self._order.create_event(event)
        self._order.record_state(event, stream)

    @_later
    def wait(self, stream: int, event: int) -> None:
        """Add a stream's wait for an event; one of another run is no wait."""
        if event in self._order.recorded_sync_states:
            self._know(stream)
            self._order.stream_wait_for_event(stream, event)

    @_later
    def synchronize_stream(self, stream: int) -> None:
        """Add a host wait for a stream."""
        self._know(stream)
        self._order.all_streams_wait_for_stream(stream)

    @_later
    def synchronize_event(self, event: int) -> None:
        """Add a host wait for an event."""
        if event in self._order.recorded_sync_states:
            self._order.all_streams_wait_for_event(event)

    @_later
    def synchronize_device(self, streams: Sequence[int]) -> None:
        """Add a host wait for everything."""
        for stream in streams:
            self._know(stream)
        self._order.sync_all_streams()

    def _wait_for_host(self, stream: int) -> None:
        """Order a launch on pinned memory after all earlier accesses of the host."""
        self._order.record_state(HOST, HOST)
        self._order.stream_wait_for_event(stream, HOST)

    def _know(self, stream: int) -> None:
        if stream not in self._order.current_sync_states:
            self._order.create_stream(stream)

    def _forget_early_reads(self, block: int) -> None:
        """Keep each stream's last read: work ordered after it is ordered after earlier ones too."""
        info = self._handler.tensors_accessed.accesses[block]
        if len(info.reads) > _MOST_READS:
            info.reads = list({read.stream: read for read in info.reads}.values())

    def _access(self, access: UpstreamAccess) -> Access:
        operator, site = self._launches[access.seq_num]
        is_write = access.type is access.type.WRITE
        return Access(operator=operator, stream=access.stream, site=site, is_write=is_write)
