"""Who is told what a run launches, orders and waits for, in the order of the host."""

from __future__ import annotations

from typing import Protocol

from backend_caps.simulator.counts import Waited
from backend_caps.simulator.queues import Marker, Op


class DeviceWatcher(Protocol):
    """Is told of everything as the host does it, whenever the schedule then lets it run."""

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


class Unwatched:
    """Nobody wants to know."""

    def launched(self, stream: int, op: Op) -> None:
        """Let it pass."""

    def replay_began(self, stream: int) -> None:
        """Let it pass."""

    def replay_ended(self) -> None:
        """Let it pass."""

    def recorded(self, marker: Marker) -> None:
        """Let it pass."""

    def waited(self, stream: int, marker: Marker) -> None:
        """Let it pass."""

    def synchronized(self, cause: str, waited: Waited, marker: Marker | None) -> None:
        """Let it pass."""
