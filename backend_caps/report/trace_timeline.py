"""What a run's host and streams did when, whichever clock told it.

Times are whole nanoseconds since the recording began.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

HOST = "host"
"""The lane of what the host does; every other lane is a stream."""
FORWARD, SCHEDULE, COPY, HOST_COPY = "forward", "schedule", "copy", "host_copy"
"""The lanes of an engine's streams."""
WAITED_FOR = {COPY: "lengths", HOST_COPY: "tokens"}
"""What the host waits for, by the stream that brings it."""


class SpanKind(Enum):
    """What fills a stretch of a lane."""

    WORK = "work"
    """The host's code, or operators of a stream."""
    WAIT = "wait"
    """The host stands still for a stream."""


class Signal(Enum):
    """What an arrow says that something is there for."""

    LENGTHS = "lengths"
    """The copy stream waits for the publish, to bring lengths to the host."""
    LENGTHS_TO_HOST = "lengths to the host"
    """The host waits for the copy stream."""
    GATHER = "gather"
    """The schedule stream waits for the publish, to gather lengths on the device."""
    WAR_BARRIER = "WAR barrier"
    """The schedule stream waits for the forward's last read of what the scheduler writes."""
    BATCH = "batch"
    """The forward stream waits for the schedule stream, where the batch was built."""
    TOKENS = "tokens"
    """The host-copy stream waits for the forward."""
    TOKENS_TO_HOST = "tokens to the host"
    """The host waits for the tokens."""
    OTHER = "other"
    """Any other wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedOp:
    """An operator of a stream."""

    name: str
    begin_ns: int
    end_ns: int
    launched_ns: int | None
    """When the host had launched it; None: not known."""
    replayed: bool | None
    """Whether a graph's replay launched it, with others; None: not known."""
    site: str | None
    """The line that launched it; of a replayed one, the line that was captured. None: not known."""
    num_bytes: int
    """What crosses between host and device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A stretch of a lane; on the host it may lie in others."""

    lane: str
    name: str
    kind: SpanKind
    step: int
    """The step that it is of: 1 is the first that is shown, and those before it are 0 and less."""
    begin_ns: int
    end_ns: int
    depth: int = 0
    """How many spans of its lane it lies in."""
    ops: tuple[TimedOp, ...] = ()
    """What a stream ran."""
    for_lane: str | None = None
    """The stream that the host waits for; None where it waits for the device, or not at all."""

    @property
    def length_ns(self) -> int:
        """How long it is."""
        return self.end_ns - self.begin_ns

    @property
    def busy_ns(self) -> int:
        """How long operators of it ran."""
        return sum(op.end_ns - op.begin_ns for op in self.ops)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrow:
    """Something that was there, and what waited for it."""

    signal: Signal
    begin_lane: str
    begin_ns: int
    """When it was there."""
    end_lane: str
    end_ns: int
    """When what waited went on: the next operator, or the host."""
    step: int
    """The step that was launched when the wait was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """A stretch in which a stream ran nothing."""

    lane: str
    begin_ns: int
    end_ns: int
    waits_for: str
    """The lane that let the next operator begin: the host, which launched it only then, or the
    stream that it waited for."""

    @property
    def length_ns(self) -> int:
        """How long it is."""
        return self.end_ns - self.begin_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Some steps of a run."""

    level: str
    """What the host is told about lengths."""
    lanes: tuple[str, ...]
    """From the host down."""
    spans: tuple[Span, ...]
    """By lane, by time, those that hold others before them; some reach out of the steps."""
    arrows: tuple[Arrow, ...]
    gaps: tuple[Gap, ...]
    begin_ns: int
    """When the host began the first step."""
    end_ns: int
    """When it ended the last."""
    num_steps: int
    bytes_to_host: int
    """What crossed to the host in the steps."""
    bytes_of_lengths: int
    """That of it which is lengths."""

    @property
    def step_ns(self) -> int:
        """How long a step takes the host: a mean, rounded."""
        return round((self.end_ns - self.begin_ns) / self.num_steps)

    def on(self, lane: str) -> tuple[Span, ...]:
        """List the spans of a lane."""
        return tuple(span for span in self.spans if span.lane == lane)

    def waits_for(self, lane: str) -> tuple[Span, ...]:
        """List the host's waits for a stream."""
        return tuple(span for span in self.on(HOST) if span.for_lane == lane)

    def idle_ns(self, lane: str) -> int:
        """Sum up how long a stream runs nothing within the steps."""
        return sum(self.within(gap.begin_ns, gap.end_ns) for gap in self.gaps if gap.lane == lane)

    def waited_ns(self, lane: str) -> int:
        """Sum up how long the host waits for a stream."""
        return sum(span.length_ns for span in self.waits_for(lane))

    def within(self, begin_ns: int, end_ns: int) -> int:
        """Measure how much of a stretch lies within the steps."""
        return max(0, min(end_ns, self.end_ns) - max(begin_ns, self.begin_ns))

    def arrows_of(self, signal: Signal) -> Iterator[Arrow]:
        """List the arrows that say one thing."""
        return (arrow for arrow in self.arrows if arrow.signal is signal)
