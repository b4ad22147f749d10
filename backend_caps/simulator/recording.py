"""What a graph's capture records instead of letting it run."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

from backend_caps.simulator.allocator import Pool
from backend_caps.simulator.queues import Op

event_serials = itertools.count(1)
"""Names of events, and of points in graphs, to the race detector."""


@dataclass(slots=True, eq=False)
class Point:
    """A point in a captured stream's work that another captured stream waits for."""

    clock: dict[int, int]
    """How much of each captured stream's work is before it."""
    serial: int = field(default_factory=lambda: next(event_serials))
    """Names it to the race detector."""


@dataclass(frozen=True, slots=True)
class Reach:
    """A captured stream reaches a point: what an event's record leaves in a graph."""

    point: Point


@dataclass(frozen=True, slots=True)
class Await:
    """A captured stream waits for a point: an edge between two branches of a graph."""

    point: Point


Step = Op | Reach | Await | Callable[[int], None]
"""Device work, an edge of the graph, or what an external event does on the stream it is given."""


@dataclass(slots=True, eq=False)
class Capture:
    """A capture that is going on, on the stream where it began and on those that joined it."""

    pool: Pool
    """Memory of what is allocated in it."""
    origin: int
    """The handle of the stream where it began."""
    steps: list[tuple[int, Step]] = field(default_factory=list)
    """What was recorded, in the order of the host, each with the handle of its stream."""
    clocks: dict[int, dict[int, int]] = field(default_factory=dict)
    """By stream, how much of each stream's work comes before its next."""

    def __post_init__(self) -> None:
        self.clocks[self.origin] = {self.origin: 0}

    def has(self, handle: int) -> bool:
        """Tell whether a stream's work is recorded."""
        return handle in self.clocks

    def add(self, handle: int, step: Op | Callable[[int], None]) -> None:
        """Record device work of a stream."""
        self.clocks[handle][handle] += 1
        self.steps.append((handle, step))

    def reach(self, handle: int) -> Point:
        """Record an event at the end of a stream's work."""
        point = Point(dict(self.clocks[handle]))
        self.steps.append((handle, Reach(point)))
        return point

    def wait(self, handle: int, point: Point) -> None:
        """Make a stream wait for a point; one that has not joined the capture joins it here."""
        clock = self.clocks.setdefault(handle, {handle: 1})
        for other, count in point.clock.items():
            clock[other] = max(clock.get(other, 0), count)
        self.steps.append((handle, Await(point)))

    @property
    def unjoined(self) -> list[int]:
        """List the streams with work that the stream where it began does not wait for."""
        waited = self.clocks[self.origin]
        own = {handle: clock[handle] for handle, clock in self.clocks.items()}
        return sorted(handle for handle, count in own.items() if waited.get(handle, 0) < count)
