"""A timeline: what a run's host and streams did when, made of recorded operators and waits.

Times are whole nanoseconds since the recording began.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, StrEnum
from itertools import groupby, pairwise
from operator import attrgetter

US = 1000
"""Nanoseconds of a microsecond."""
PUBLISH, BARRIER = "publish", "WAR barrier"
"""Regions from which the signal of an arrow follows."""


class Lane(StrEnum):
    """The host's lane, and those of an engine's streams; another stream's lane is any text."""

    HOST = "host"
    """The thread that launches work."""
    FORWARD = "forward"
    """The stream of the forwards."""
    SCHEDULE = "schedule"
    """The stream that batches are built on."""
    COPY = "copy"
    """The stream that brings lengths to the host."""
    HOST_COPY = "host_copy"
    """The stream that brings tokens to the host."""

    @classmethod
    def brings(cls, lane: str | None) -> str | None:
        """Name what a stream brings to the host, which waits for it; None of any other."""
        brought: dict[str | None, str] = {cls.COPY: "lengths", cls.HOST_COPY: "tokens"}
        return brought.get(lane)


class Signal(Enum):
    """What a wait is for."""

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
class Stretch:
    """A stretch of a lane."""

    lane: str
    begin_ns: int
    end_ns: int

    @property
    def length_ns(self) -> int:
        """How long it is."""
        return self.end_ns - self.begin_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedOp(Stretch):
    """An operator of a stream."""

    name: str
    region: str
    """The host's innermost region when it launched it."""
    step: int
    held_by: str
    """The lane that the operator waited for last; its own lane where it waited for no other."""
    launched_ns: int | None
    """When the host had launched it; None: not known."""
    replayed: bool | None
    """Whether a graph's replay launched it, with others; None: not known."""
    site: str | None
    """The line that launched it; of a replayed one, the line that was captured. None: not known."""
    num_bytes: int
    """What crosses between host and device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span(Stretch):
    """What a lane does in a stretch; on the host it may lie in others."""

    name: str
    step: int
    """The step that it is of: 1 is the first that is shown, and those before it are 0 and less."""
    depth: int = 0
    """How many spans of its lane it lies in."""
    ops: tuple[TimedOp, ...] = ()
    """What a stream ran."""
    is_wait: bool = False
    """Whether the host blocks; else its code runs, or operators of a stream."""
    for_lane: str | None = None
    """The stream that the host waits for; None where it waits for the device, or not at all."""

    @property
    def busy_ns(self) -> int:
        """How long the operators of the span ran."""
        return sum(op.length_ns for op in self.ops)

    def covers(self, at_ns: int) -> bool:
        """Return whether a time lies in the span."""
        return self.begin_ns <= at_ns < self.end_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap(Stretch):
    """A stretch in which a stream ran nothing."""

    waits_for: str
    """The lane that let the next operator begin: the host, which launched it only then, or the
    stream that it waited for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrow:
    """A wait: from the end of what was waited for to the begin of what waited."""

    signal: Signal
    begin_lane: str
    begin_ns: int
    """When the work that was waited for had ended."""
    end_lane: str
    end_ns: int
    """When the waiting side went on: the next operator, or the host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Some steps of a run."""

    level: str
    """The level of `host_seq_lens` that the steps ran with."""
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
    """Bytes of lengths among `bytes_to_host`."""

    @property
    def step_ns(self) -> int:
        """How long a step takes the host: a mean, rounded."""
        return round((self.end_ns - self.begin_ns) / self.num_steps)

    def on(self, lane: str) -> tuple[Span, ...]:
        """List the spans of a lane."""
        return tuple(span for span in self.spans if span.lane == lane)

    def waited_ns(self, lane: str) -> int:
        """Sum up how long the host waits for a stream."""
        return sum(span.length_ns for span in self.on(Lane.HOST) if span.for_lane == lane)

    def idle_ns(self, lane: str) -> int:
        """Sum up how long a stream runs nothing within the steps."""
        inside = (
            min(gap.end_ns, self.end_ns) - max(gap.begin_ns, self.begin_ns)
            for gap in self.gaps
            if gap.lane == lane
        )
        return sum(max(0, length_ns) for length_ns in inside)

    def cut(self, ran: Sequence[TimedOp]) -> Timeline:
        """Add what streams did; leave out what does not reach into the steps, and keep the rest.

        Args:
            ran: operators, of each lane in their order.
        """

        def meets(part: Stretch | Arrow) -> bool:
            return part.begin_ns < self.end_ns and part.end_ns > self.begin_ns

        spans = sorted(self.spans, key=lambda span: (span.begin_ns, span.depth))
        gaps: list[Gap] = []
        for lane in self.lanes:
            ops = [op for op in ran if op.lane == lane]
            spans += _blocks(ops)
            gaps += _gaps(ops)
        return replace(
            self,
            spans=tuple(filter(meets, spans)),
            arrows=tuple(filter(meets, self.arrows)),
            gaps=tuple(filter(meets, gaps)),
        )


def _blocks(ran: Iterable[TimedOp]) -> Iterator[Span]:
    """Group consecutive operators of a stream by region and step, one span a group."""
    for (region, step), group in groupby(ran, key=attrgetter("region", "step")):
        ops = tuple(group)
        yield Span(
            lane=ops[0].lane,
            name=region,
            step=step,
            begin_ns=ops[0].begin_ns,
            end_ns=ops[-1].end_ns,
            ops=ops,
        )


def _gaps(ran: Iterable[TimedOp]) -> Iterator[Gap]:
    """List where a stream runs nothing between two operators, and the lane that ends it."""
    for before, after in pairwise(ran):
        if before.end_ns < after.begin_ns:
            begin_ns, end_ns, lane = before.end_ns, after.begin_ns, after.lane
            yield Gap(lane=lane, begin_ns=begin_ns, end_ns=end_ns, waits_for=after.held_by)


_OF_PUBLISH: Mapping[str, Signal] = {Lane.COPY: Signal.LENGTHS, Lane.SCHEDULE: Signal.GATHER}
_BETWEEN: Mapping[tuple[str, str], Signal] = {
    (Lane.COPY, Lane.HOST): Signal.LENGTHS_TO_HOST,
    (Lane.SCHEDULE, Lane.FORWARD): Signal.BATCH,
    (Lane.FORWARD, Lane.HOST_COPY): Signal.TOKENS,
    (Lane.HOST_COPY, Lane.HOST): Signal.TOKENS_TO_HOST,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Where an event was recorded."""

    lane: str
    time_ns: int
    region: str

    def arrow_to(self, lane: str, region: str, end_ns: int) -> Arrow:
        """Draw the wait of a lane for the event, in a region of the host, until `end_ns`."""
        signal = _BETWEEN.get((self.lane, lane), Signal.OTHER)
        if region == BARRIER:
            signal = Signal.WAR_BARRIER
        elif self.region == PUBLISH:
            signal = _OF_PUBLISH.get(lane, signal)
        return Arrow(
            signal=signal, begin_lane=self.lane, begin_ns=self.time_ns, end_lane=lane, end_ns=end_ns
        )
