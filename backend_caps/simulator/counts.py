"""What a run launches, orders, moves and waits for: counted, and passed on to a watcher."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, Self

from backend_caps.simulator.queues import Marker, Op


class WaitKind(Enum):
    """What made the host wait."""

    STREAM = "stream"
    """`synchronize` of a stream, or a loop that asks `query` of it until it is true."""
    EVENT = "event"
    """`synchronize` of an event that was recorded, or a loop that asks `query` of it."""
    DEVICE = "device"
    """`synchronize` of the whole device."""
    HIDDEN = "hidden"
    """An operator that has to know a number, or a copy that blocks."""


class Waited(NamedTuple):
    """A kind of host wait, and whose work it was for."""

    kind: WaitKind
    """What made the host wait."""
    stream: int | None
    """The handle of the stream whose work was waited for; None is the whole device."""

    def __str__(self) -> str:
        return self.kind.value if self.stream is None else f"{self.kind.value} {self.stream}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What a run has done up to a moment, or between two of them: `later - earlier`."""

    num_ops: int
    """Operators launched, copies among them; a replay launches each of its graph's."""
    num_copies_to_host: int
    """Copies from the device to the host."""
    num_copies_to_device: int
    """Copies from the host to the device."""
    bytes_to_host: int
    """Bytes that crossed from the device to the host, numbers that the host read among them."""
    bytes_to_device: int
    """Bytes that crossed from the host to the device."""
    num_event_records: int
    """Events recorded on a stream; `wait_stream` records one."""
    num_event_waits: int
    """Waits of a stream for an event that was recorded; `wait_stream` is one."""
    waits: Mapping[Waited, int]
    """Waits of the host, by kind and stream; without those that there are none of."""
    bytes_to_host_on: Mapping[int, int] = field(default_factory=dict)
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

    def __sub__(self, earlier: Self) -> Counts:
        return Counts(
            num_ops=self.num_ops - earlier.num_ops,
            num_copies_to_host=self.num_copies_to_host - earlier.num_copies_to_host,
            num_copies_to_device=self.num_copies_to_device - earlier.num_copies_to_device,
            bytes_to_host=self.bytes_to_host - earlier.bytes_to_host,
            bytes_to_device=self.bytes_to_device - earlier.bytes_to_device,
            num_event_records=self.num_event_records - earlier.num_event_records,
            num_event_waits=self.num_event_waits - earlier.num_event_waits,
            waits=dict(Counter(self.waits) - Counter(earlier.waits)),
            bytes_to_host_on=dict(
                Counter(self.bytes_to_host_on) - Counter(earlier.bytes_to_host_on)
            ),
        )


class DeviceWatcher:
    """Callbacks in the order of the host, whenever the schedule then lets work run."""

    def launched(self, stream: int, op: Op) -> None:
        """Take in that work was put on a stream; what a graph captures is told at its replays."""

    def replay_began(self, stream: int) -> None:
        """Take in that one launch puts all on a stream that is told until `replay_ended`."""

    def replay_ended(self) -> None:
        """Take in that the replay is enqueued."""

    def recorded(self, marker: Marker) -> None:
        """Take in that an event was recorded at the end of the marker's stream."""

    def waited(self, stream: int, marker: Marker) -> None:
        """Take in that a stream waits for an event."""

    def synchronized(self, cause: str, waited: Waited, marker: Marker | None) -> None:
        """Take in that the host waits: for a marker; for all of a stream, or of the device."""
