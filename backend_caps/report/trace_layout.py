"""The layout of a trace's picture: positions and sizes of all that the template draws."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from backend_caps.report.trace_timeline import US, Arrow, Lane, Signal, Span, Timeline

WIDTH = 1200.0
"""The width of the whole picture."""
_LEFT, _RIGHT = 96.0, 24.0
_PLOT = WIDTH - _LEFT - _RIGHT
_HEADING = 34.0
"""From a panel's top to its first lane."""
_FOOT = 34.0
"""Below its last lane: steps and times."""
_LANES = (Lane.SCHEDULE, Lane.FORWARD, Lane.COPY, Lane.HOST_COPY, Lane.HOST)
"""From the top: a lane is beside those that it exchanges most with."""
_TALL, _THIN, _LANES_APART = 34.0, 12.0, 28.0
_TALL_LANES = frozenset({Lane.FORWARD, Lane.HOST})
LETTER_PX = 6.3
"""The width of a letter, on average, and a little more."""
_APART_PX = 2.5
"""Idle stretches that are closer than this cannot be distinguished, and are drawn as one."""
_TELLING_PX = 12.0
"""How wide an idle stretch is before its length is written."""
_LEAST_PX = 2.0
"""How wide a block is drawn, however short it is."""
_TIMES_US = (50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000)
_MOST_TICKS = 12
_MARK_PX = 12.0
"""Marks that are closer than this are written as one."""
MARKS = {Signal.GATHER: "P", Signal.WAR_BARRIER: "R"}
"""What is written where an arrow of a signal begins."""
_STRONG = {
    Signal.LENGTHS: "lengths",
    Signal.LENGTHS_TO_HOST: "lengths",
    Signal.WAR_BARRIER: "barrier",
}
_KINDS = {own: own for own in ("draft", "verify", "decode", "launch", "results")}
_KINDS |= {"draft_extend": "extend", "build batch": "build"}
_ARROW_WORDS = {Signal.LENGTHS_TO_HOST: "publish → host lengths", Signal.WAR_BARRIER: "WAR barrier"}
_ABSENT: Mapping[str, str] = {Lane.COPY: "no such stream: no length crosses"}


class LaneBand(NamedTuple):
    """Where a lane is drawn."""

    name: str
    top: float
    height: float
    absent: str
    """Why this level has no such lane; empty where it has one."""

    @property
    def middle(self) -> float:
        """The vertical middle of the lane."""
        return self.top + self.height / 2


class Box(NamedTuple):
    """A stretch of a lane."""

    x: float
    y: float
    width: float
    height: float
    kind: str
    """What it is, as a class of the style."""
    label: str
    """What is written in it; empty where there is no room."""
    label_x: float
    tip: str
    """The text that is shown under a pointer."""


class ArrowLine(NamedTuple):
    """A line from the work that was waited for to the lane that waited."""

    x1: float
    y1: float
    x2: float
    y2: float
    kind: str
    label: str
    label_y: float
    tip: str


class Text(NamedTuple):
    """A few words."""

    x: float
    y: float
    kind: str
    text: str


class Tick(NamedTuple):
    """A time."""

    x: float
    label: str


class _Idle(NamedTuple):
    begin_ns: int
    end_ns: int
    idle_ns: int


def panels_of(timelines: Sequence[Timeline], *, top: float, apart: float) -> list[Panel]:
    """Place timelines one above the other, at one scale: the longest fills the width.

    Args:
        timelines: what is shown.
        top: where the first begins.
        apart: what is between two.
    """
    scale = _PLOT / max(own.end_ns - own.begin_ns for own in timelines)
    lanes = [*dict.fromkeys(lane for own in timelines for lane in own.lanes)]
    panels: list[Panel] = []
    for timeline in timelines:
        panels.append(Panel(timeline, top, scale, lanes))
        top = panels[-1].bottom + apart
    return panels


class Panel:
    """One timeline's lanes, with their boxes, texts, arrows and ticks.

    Args:
        timeline: what is shown.
        top: the y of its upper edge.
        px_per_ns: the scale, which all panels share.
        lanes: the lanes of all panels, so that panels line up.
    """

    def __init__(
        self, timeline: Timeline, top: float, px_per_ns: float, lanes: Sequence[str]
    ) -> None:
        self.top, self.left = top, _LEFT
        self._timeline, self._px_per_ns = timeline, px_per_ns
        self.right = self._x(timeline.end_ns)
        self._lanes: dict[str, LaneBand] = {}
        y = self.lanes_top = top + _HEADING
        ordered = sorted(lanes, key=lambda own: _LANES.index(own) if own in _LANES else len(_LANES))
        for lane in ordered:
            height = _TALL if lane in _TALL_LANES else _THIN
            absent = "" if lane in timeline.lanes else _ABSENT.get(lane, "no such stream")
            self._lanes[lane] = LaneBand(name=lane, top=y, height=height, absent=absent)
            self.lanes_bottom = y + height
            y += height + _LANES_APART
        self.lanes = tuple(self._lanes.values())
        self.bottom = self.lanes_bottom + _FOOT

    @cached_property
    def boxes(self) -> tuple[Box, ...]:
        """Blocks of streams, what the host does and waits for, and idle stretches."""
        return (*self._blocks(), *self._host(), *self._idle())

    @cached_property
    def texts(self) -> tuple[Text, ...]:
        """What is written beside boxes, or on the host's waits."""
        return (*self._notes(), *self._waits(), *self._marks(), *self._steps())

    def _x(self, at_ns: int) -> float:
        return round(_LEFT + (at_ns - self._timeline.begin_ns) * self._px_per_ns, 1)

    def _cut(self, own: Span | _Idle) -> tuple[float, float] | None:
        """Return where a stretch is drawn, and how wide; None where it is outside of the steps."""
        begin = self._x(self._timeline.begin_ns)
        x0, x1 = max(begin, self._x(own.begin_ns)), min(self.right, self._x(own.end_ns))
        return None if x1 < x0 or x0 >= self.right else (x0, round(x1 - x0, 1))

    def _box(self, lane: str, own: Span | _Idle, kind: str, label: str, tip: str) -> Iterator[Box]:
        cut = self._cut(own)
        if cut is None:
            return
        shape, (x, width) = self._lanes[lane], cut
        free_x, free_width = self._free(lane, own) or cut
        fits = _width(label) <= free_width and shape.height >= _TALL
        label, middle = label if fits else "", round(free_x + free_width / 2, 1)
        size = (max(width, _LEAST_PX), shape.height)
        yield Box(x, shape.top, *size, kind, label, label_x=middle, tip=tip)

    def _free(self, lane: str, own: Span | _Idle) -> tuple[float, float] | None:
        """Find the widest part of a block that nothing is drawn over."""
        idle = self._idle_stretches if lane == Lane.FORWARD else ()
        waits = [span for span in self._timeline.on(lane) if span.is_wait]
        drawn: Sequence[Span | _Idle] = (*idle, *waits)
        over = [each for each in drawn if own.begin_ns <= each.begin_ns < own.end_ns]
        begins = [own.begin_ns, *(each.end_ns for each in over)]
        ends = [*(each.begin_ns for each in over), own.end_ns]
        parts = [self._cut(_Idle(*part, 0)) for part in zip(begins, ends, strict=True)]
        return max((part for part in parts if part), key=lambda part: part[1], default=None)

    def _blocks(self) -> Iterator[Box]:
        for lane in self._lanes:
            for span in self._timeline.on(lane) if lane != Lane.HOST else ():
                tip = f"{_tip(span)}, {len(span.ops)} operators"
                kind, label = _KINDS.get(span.name, "other"), f"{span.name} {span.step}"
                yield from self._box(lane, span, kind, label, tip)

    def _host(self) -> Iterator[Box]:
        """Place the host's work of a step, then its waits, which are drawn over it."""
        spans = self._timeline.on(Lane.HOST)
        for span in spans:
            if not span.is_wait and span.depth == 1:
                kind = _KINDS.get(span.name, "other")
                yield from self._box(Lane.HOST, span, kind, span.name, _tip(span))
        for span in spans:
            if span.is_wait and span.length_ns:
                yield from self._box(Lane.HOST, span, "wait", "", _tip(span))

    def _idle(self) -> Iterator[Box]:
        for own in self._idle_stretches:
            tip = f"the forward stream is idle for {_us(own.idle_ns)} µs"
            yield from self._box(Lane.FORWARD, own, "idle", "", tip)

    @cached_property
    def _idle_stretches(self) -> tuple[_Idle, ...]:
        """Gaps of the forward stream; neighbours too close to be distinguished are merged."""
        found: list[_Idle] = []
        for gap in self._timeline.gaps:
            if gap.lane != Lane.FORWARD:
                continue
            own = _Idle(gap.begin_ns, gap.end_ns, gap.length_ns)
            if found and (gap.begin_ns - found[-1].end_ns) * self._px_per_ns <= _APART_PX:
                last = found.pop()
                own = _Idle(last.begin_ns, gap.end_ns, last.idle_ns + gap.length_ns)
            found.append(own)
        return tuple(found)

    def _notes(self) -> Iterator[Text]:
        """Write the length of idle stretches under them."""
        forward = self._lanes[Lane.FORWARD]
        for own in self._idle_stretches:
            cut = self._cut(own)
            if cut is not None and cut[1] >= _TELLING_PX:
                x, y = cut[0] + cut[1] / 2, forward.top + forward.height + 13
                yield Text(x=round(x, 1), y=y, kind="note", text=f"{_us(own.idle_ns)} µs")

    def _waits(self) -> Iterator[Text]:
        """Write on the host's waits what they are for."""
        for span in self._timeline.on(Lane.HOST):
            cut = self._cut(span) if span.is_wait else None
            words = (Lane.brings(span.for_lane) or "hidden", f"{_us(span.length_ns)} µs")
            if cut is not None and max(map(_width, words)) <= cut[1]:
                x, y = cut[0] + cut[1] / 2, self._lanes[Lane.HOST].middle
                for line, text in enumerate(words):
                    yield Text(x=round(x, 1), y=y - 3 + 14 * line, kind="waited", text=text)

    def _marks(self) -> Iterator[Text]:
        """Mark where lengths are published, and where the last shared read ends."""
        drawn: list[Text] = []
        arrows = [own for own in self._arrows_inside if own.signal in MARKS]
        for arrow in sorted(arrows, key=lambda own: own.begin_ns):
            x, y = self._x(arrow.begin_ns) - 3, self._lanes[arrow.begin_lane].top - 4
            words = [MARKS[arrow.signal]]
            if drawn and x - drawn[-1].x < _MARK_PX:
                words = [*dict.fromkeys((*drawn.pop().text.split(), *words))]
            drawn.append(Text(x=round(x, 1), y=y, kind="mark", text=" ".join(words)))
        yield from drawn

    @cached_property
    def arrows(self) -> tuple[ArrowLine, ...]:
        """Arrows that lie within the steps; the first of a signal that has room is named."""
        named: set[Signal] = set()
        found = []
        for arrow in self._arrows_inside:
            words = _ARROW_WORDS.get(arrow.signal, "")
            is_named = (
                arrow.signal not in named and self._x(arrow.end_ns) + _width(words) < self.right
            )
            named |= {arrow.signal} if is_named else set()
            found.append(self._arrow(arrow, words if is_named else ""))
        return tuple(found)

    @property
    def _arrows_inside(self) -> list[Arrow]:
        begin, end = self._timeline.begin_ns, self._timeline.end_ns
        arrows = self._timeline.arrows
        return [own for own in arrows if begin <= own.begin_ns and own.end_ns <= end]

    def _arrow(self, arrow: Arrow, label: str) -> ArrowLine:
        source, target = self._lanes[arrow.begin_lane], self._lanes[arrow.end_lane]
        is_down = source.top < target.top
        y1 = source.top + source.height if is_down else source.top
        y2 = target.top - 1 if is_down else target.top + target.height + 1
        ends = (self._x(arrow.begin_ns), y1, self._x(arrow.end_ns), y2)
        label_y = (y1 if is_down else y2) + _LANES_APART / 2 + 4
        tip = f"{arrow.signal.value}: {arrow.begin_lane} → {arrow.end_lane}"
        return ArrowLine(*ends, _STRONG.get(arrow.signal, "order"), label, label_y, tip)

    def _steps(self) -> Iterator[Text]:
        y = self._lanes[Lane.HOST].top + _TALL + 14
        for span in self._timeline.on(Lane.HOST):
            if span.depth == 0 and 0 < span.step <= self._timeline.num_steps:
                yield Text(x=self._x(span.begin_ns) + 3, y=y, kind="step", text=span.name)

    @cached_property
    def ticks(self) -> tuple[Tick, ...]:
        """Times below the lanes."""
        length_us = (self._timeline.end_ns - self._timeline.begin_ns) / US
        whole_us = _PLOT / self._px_per_ns / US
        every = next((own for own in _TIMES_US if whole_us / own <= _MOST_TICKS), _TIMES_US[-1])
        found = []
        for at_us in range(0, int(length_us // every) * every + 1, every):
            x = self._x(self._timeline.begin_ns + at_us * US)
            label = f"{at_us / US:g} ms" if at_us else "0"
            found.append(Tick(x=x, label=label if x + _width(label) < WIDTH else ""))
        return tuple(found)


def _width(text: str) -> float:
    return len(text) * LETTER_PX + 4


def _tip(span: Span) -> str:
    return f"{span.name}, step {span.step}: {_us(span.length_ns)} µs"


def _us(length_ns: int) -> str:
    return f"{length_ns / US:.0f}"
