"""What a wait is about, by where its event was recorded and where the wait stands."""

from __future__ import annotations

from dataclasses import dataclass

from backend_caps.report.trace_timeline import (
    COPY,
    FORWARD,
    HOST,
    HOST_COPY,
    SCHEDULE,
    Arrow,
    Signal,
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Where an event was recorded."""

    lane: str
    time_ns: int
    region: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Where a wait stands."""

    lane: str
    region: str
    step: int


def arrow(point: Point, waiting: Waiting, end_ns: int) -> Arrow:
    """Draw a wait that ended at a time."""
    return Arrow(
        signal=_signal(point, waiting),
        begin_lane=point.lane,
        begin_ns=point.time_ns,
        end_lane=waiting.lane,
        end_ns=end_ns,
        step=waiting.step,
    )


def _signal(point: Point, waiting: Waiting) -> Signal:
    if waiting.region == BARRIER:
        return Signal.WAR_BARRIER
    if point.region == PUBLISH and waiting.lane in _OF_PUBLISH:
        return _OF_PUBLISH[waiting.lane]
    return _BETWEEN.get((point.lane, waiting.lane), Signal.OTHER)
