"""From recorded operators, spans and waits to a timeline: blocks, gaps and arrows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from operator import attrgetter

from backend_caps.report.trace_timeline import (
    COPY,
    FORWARD,
    HOST,
    HOST_COPY,
    SCHEDULE,
    Arrow,
    Gap,
    Signal,
    Span,
    TimedOp,
    Timeline,
)

PUBLISH, BARRIER = "publish", "WAR barrier"
"""Regions that say what an arrow means."""
_OF_PUBLISH = {COPY: Signal.LENGTHS, SCHEDULE: Signal.GATHER}
_BETWEEN = {
    (COPY, HOST): Signal.LENGTHS_TO_HOST,
    (SCHEDULE, FORWARD): Signal.BATCH,
    (FORWARD, HOST_COPY): Signal.TOKENS,
    (HOST_COPY, HOST): Signal.TOKENS_TO_HOST,
}


def cut(recorded: Timeline, ran: Sequence[TimedOp]) -> Timeline:
    """Add what streams did, and leave out what does not reach into the steps; the rest is whole.

    Args:
        recorded: what the host did, and waits for events.
        ran: operators, of each lane in their order.
    """

    def meets(own: Span | Arrow | Gap) -> bool:
        return own.begin_ns < recorded.end_ns and own.end_ns > recorded.begin_ns

    host = sorted(recorded.spans, key=lambda own: (own.begin_ns, own.depth))
    spans = (*host, *(block for lane in recorded.lanes for block in blocks(ran, lane)))
    idle = (gap for lane in recorded.lanes for gap in gaps(ran, lane))
    return replace(
        recorded,
        spans=tuple(filter(meets, spans)),
        arrows=tuple(filter(meets, recorded.arrows)),
        gaps=tuple(filter(meets, idle)),
    )


def blocks(ran: Iterable[TimedOp], lane: str) -> Iterator[Span]:
    """Put operators of one region and step that a stream runs one after the other together."""
    own = [each for each in ran if each.lane == lane]
    for (region, step), group in groupby(own, key=attrgetter("region", "step")):
        ops = tuple(group)
        yield Span(
            lane=lane,
            name=region,
            step=step,
            begin_ns=ops[0].begin_ns,
            end_ns=ops[-1].end_ns,
            ops=ops,
        )


def gaps(ran: Iterable[TimedOp], lane: str) -> Iterator[Gap]:
    """List where a stream runs nothing between two operators, and the lane that ends it."""
    own = [each for each in ran if each.lane == lane]
    for before, after in pairwise(own):
        if before.end_ns < after.begin_ns:
            yield Gap(
                lane=lane, begin_ns=before.end_ns, end_ns=after.begin_ns, waits_for=after.held_by
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Where an event was recorded."""

    lane: str
    time_ns: int
    region: str


def arrow(point: Point, lane: str, region: str, end_ns: int) -> Arrow:
    """Draw a wait of a lane, in a region of the host, that ended at a time."""
    return Arrow(
        signal=_signal(point, lane, region),
        begin_lane=point.lane,
        begin_ns=point.time_ns,
        end_lane=lane,
        end_ns=end_ns,
    )


def _signal(point: Point, lane: str, region: str) -> Signal:
    if region == BARRIER:
        return Signal.WAR_BARRIER
    if point.region == PUBLISH and lane in _OF_PUBLISH:
        return _OF_PUBLISH[lane]
    return _BETWEEN.get((point.lane, lane), Signal.OTHER)
