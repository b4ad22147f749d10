"""Where everything of a trace's picture stands; the template draws it, and computes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from backend_caps.report.trace_shapes import (
    ArrowShape,
    Box,
    LaneShape,
    Panel,
    Text,
    Tick,
)
from backend_caps.report.trace_timeline import (
    COPY,
    FORWARD,
    HOST,
    HOST_COPY,
    SCHEDULE,
    WAITED_FOR,
    Arrow,
    Gap,
    Signal,
    Span,
    SpanKind,
    Timeline,
)

WIDTH = 1200.0
"""Of the whole picture."""
_LEFT, _RIGHT = 96.0, 24.0
_PLOT = WIDTH - _LEFT - _RIGHT
_HEADING = 34.0
"""From a panel's top to its first lane."""
_FOOT = 34.0
"""Below its last lane: steps and times."""
_LANES = (SCHEDULE, FORWARD, COPY, HOST_COPY, HOST)
"""From the top: a lane is beside those that it exchanges most with."""
_TALL, _THIN, _LANES_APART = 34.0, 12.0, 28.0
_TALL_LANES = frozenset({FORWARD, HOST})
LETTER_PX = 6.3
"""The width of a letter, on average, and a little more."""
_APART_PX = 2.5
"""Idle stretches that are closer than this cannot be told apart, and are drawn as one."""
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
_US = 1000
_STRONG = {
    Signal.LENGTHS: "lengths",
    Signal.LENGTHS_TO_HOST: "lengths",
    Signal.WAR_BARRIER: "barrier",
}
_KINDS = {
    "draft": "draft",
    "verify": "verify",
    "decode": "decode",
    "draft_extend": "extend",
    "build batch": "build",
    "launch": "launch",
    "results": "results",
}


def scale_of(timelines: Sequence[Timeline]) -> float:
    """Say how many pixels a nanosecond has: the longest timeline fills the width."""
    return _PLOT / max(own.end_ns - own.begin_ns for own in timelines)


def panel_of(timeline: Timeline, *, top: float, px_per_ns: float, lanes: Sequence[str]) -> Panel:
    """Place one timeline.

    Args:
        timeline: what is shown.
        top: where it begins.
        px_per_ns: the scale, which all panels share.
        lanes: those that any panel has.
    """
    return _Placing(timeline, top, px_per_ns, lanes).panel()


@dataclass(frozen=True, slots=True)
class _Idle:
    begin_ns: int
    end_ns: int
    idle_ns: int


class _Placing:
    def __init__(
        self, timeline: Timeline, top: float, px_per_ns: float, lanes: Sequence[str]
    ) -> None:
        self._timeline = timeline
        self._top = top
        self._px_per_ns = px_per_ns
        self._lanes = dict(self._place_lanes(lanes))

    def panel(self) -> Panel:
        """Place all of it."""
        last = [*self._lanes.values()][-1]
        end = self._x(self._timeline.end_ns)
        return Panel(
            top=self._top,
            left=_LEFT,
            right=end,
            bottom=last.top + last.height + _FOOT,
            lanes_top=self._top + _HEADING,
            lanes_bottom=last.top + last.height,
            lanes=tuple(self._lanes.values()),
            boxes=(*self._blocks(), *self._host(), *self._idle()),
            arrows=tuple(self._arrows()),
            texts=(*self._notes(), *self._waits(), *self._marks(), *self._steps()),
            ticks=tuple(self._ticks()),
        )

    def _place_lanes(self, lanes: Sequence[str]) -> Iterator[tuple[str, LaneShape]]:
        ordered = sorted(lanes, key=lambda own: _LANES.index(own) if own in _LANES else len(_LANES))
        y = self._top + _HEADING
        for lane in ordered:
            height = _TALL if lane in _TALL_LANES else _THIN
            absent = "" if lane in self._timeline.lanes else _ABSENT.get(lane, "no such stream")
            yield lane, LaneShape(name=lane, top=y, height=height, absent=absent)
            y += height + _LANES_APART

    def _x(self, at_ns: int) -> float:
        return round(_LEFT + (at_ns - self._timeline.begin_ns) * self._px_per_ns, 1)

    def _cut(self, begin_ns: int, end_ns: int) -> tuple[float, float] | None:
        """Return where a stretch is drawn, and how wide; None where it is outside of the steps."""
        begin, end = self._x(self._timeline.begin_ns), self._x(self._timeline.end_ns)
        x0, x1 = max(begin, self._x(begin_ns)), min(end, self._x(end_ns))
        return None if x1 < x0 or x0 >= end else (x0, round(x1 - x0, 1))

    def _box(
        self, lane: str, begin_ns: int, end_ns: int, kind: str, label: str, told: str
    ) -> Iterator[Box]:
        cut = self._cut(begin_ns, end_ns)
        if cut is None:
            return
        shape, (x, width) = self._lanes[lane], cut
        free_x, free_width = self._free(lane, begin_ns, end_ns) or cut
        fits = _width(label) <= free_width and shape.height >= _TALL
        yield Box(
            x=x,
            y=shape.top,
            width=max(width, _LEAST_PX),
            height=shape.height,
            kind=kind,
            label=label if fits else "",
            label_x=round(free_x + free_width / 2, 1),
            told=told,
        )

    def _free(self, lane: str, begin_ns: int, end_ns: int) -> tuple[float, float] | None:
        """Find the widest part of a block that nothing is drawn over."""
        idle = self._idle_stretches() if lane == FORWARD else ()
        waits = filter(_is_wait, self._timeline.on(lane))
        over = [own for own in (*idle, *waits) if begin_ns <= own.begin_ns < end_ns]
        edges = [begin_ns, *(edge for own in over for edge in (own.begin_ns, own.end_ns)), end_ns]
        parts = [
            self._cut(first, last) for first, last in zip(edges[::2], edges[1::2], strict=True)
        ]
        return max((part for part in parts if part), key=lambda part: part[1], default=None)

    def _blocks(self) -> Iterator[Box]:
        for lane in self._lanes:
            for span in self._timeline.on(lane) if lane != HOST else ():
                told = (
                    f"{span.name}, step {span.step}: {_us(span.length_ns)} µs, "
                    f"{len(span.ops)} operators"
                )
                kind = _KINDS.get(span.name, "other")
                label = f"{span.name} {span.step}"
                yield from self._box(lane, span.begin_ns, span.end_ns, kind, label, told)

    def _host(self) -> Iterator[Box]:
        """Place what the host does in a step, and its waits over that."""
        spans = self._timeline.on(HOST)
        for span in (*filter(_is_part, spans), *filter(_is_wait, spans)):
            told = f"{span.name}, step {span.step}: {_us(span.length_ns)} µs"
            kind = "wait" if _is_wait(span) else _KINDS.get(span.name, "other")
            label = "" if _is_wait(span) else span.name
            if span.length_ns or not _is_wait(span):
                yield from self._box(HOST, span.begin_ns, span.end_ns, kind, label, told)

    def _idle(self) -> Iterator[Box]:
        for own in self._idle_stretches():
            told = f"the forward stream is idle for {_us(own.idle_ns)} µs"
            yield from self._box(FORWARD, own.begin_ns, own.end_ns, "idle", "", told)

    def _idle_stretches(self) -> Iterator[_Idle]:
        """Put gaps of the forward stream together that cannot be told apart."""
        gaps = [gap for gap in self._timeline.gaps if gap.lane == FORWARD]
        group: list[Gap] = []
        for gap in gaps:
            if group and (gap.begin_ns - group[-1].end_ns) * self._px_per_ns > _APART_PX:
                yield _merged(group)
                group = []
            group.append(gap)
        if group:
            yield _merged(group)

    def _notes(self) -> Iterator[Text]:
        """Write the length of idle stretches under them."""
        forward = self._lanes[FORWARD]
        for own in self._idle_stretches():
            cut = self._cut(own.begin_ns, own.end_ns)
            if cut is not None and cut[1] >= _TELLING_PX:
                x, y = cut[0] + cut[1] / 2, forward.top + forward.height + 13
                yield Text(x=round(x, 1), y=y, kind="note", text=f"{_us(own.idle_ns)} µs")

    def _waits(self) -> Iterator[Text]:
        """Write on the host's waits what they are for."""
        for span in filter(_is_wait, self._timeline.on(HOST)):
            cut = self._cut(span.begin_ns, span.end_ns)
            words = (WAITED_FOR.get(span.for_lane or "", "hidden"), f"{_us(span.length_ns)} µs")
            if cut is not None and max(map(_width, words)) <= cut[1]:
                x, y = cut[0] + cut[1] / 2, self._lanes[HOST].middle
                for line, text in enumerate(words):
                    yield Text(x=round(x, 1), y=y - 3 + 14 * line, kind="waited", text=text)

    def _marks(self) -> Iterator[Text]:
        """Mark where lengths are published, and where the last shared read ends."""
        arrows = [own for own in self._timeline.arrows if own.signal in MARKS]
        drawn: list[Text] = []
        for arrow in sorted(filter(self._is_inside, arrows), key=lambda own: own.begin_ns):
            x, y = self._x(arrow.begin_ns) - 3, self._lanes[arrow.begin_lane].top - 4
            words = [MARKS[arrow.signal]]
            if drawn and x - drawn[-1].x < _MARK_PX:
                words = [*dict.fromkeys((*drawn.pop().text.split(), *words))]
            drawn.append(Text(x=round(x, 1), y=y, kind="mark", text=" ".join(words)))
        yield from drawn

    def _arrows(self) -> Iterator[ArrowShape]:
        named: set[Signal] = set()
        for arrow in self._timeline.arrows:
            if self._is_inside(arrow):
                is_named = arrow.signal not in named and self._has_room(arrow)
                named |= {arrow.signal} if is_named else set()
                yield self._arrow(arrow, _ARROW_WORDS.get(arrow.signal, "") if is_named else "")

    def _has_room(self, arrow: Arrow) -> bool:
        """Tell whether its words fit beside an arrow, within the lanes."""
        width = _width(_ARROW_WORDS.get(arrow.signal, ""))
        return self._x(arrow.end_ns) + width < self._x(self._timeline.end_ns)

    def _is_inside(self, arrow: Arrow) -> bool:
        begin, end = self._timeline.begin_ns, self._timeline.end_ns
        return begin <= arrow.begin_ns and arrow.end_ns <= end

    def _arrow(self, arrow: Arrow, label: str) -> ArrowShape:
        source, target = self._lanes[arrow.begin_lane], self._lanes[arrow.end_lane]
        is_down = source.top < target.top
        y1 = source.top + source.height if is_down else source.top
        y2 = target.top - 1 if is_down else target.top + target.height + 1
        return ArrowShape(
            x1=self._x(arrow.begin_ns),
            y1=y1,
            x2=self._x(arrow.end_ns),
            y2=y2,
            kind=_STRONG.get(arrow.signal, "order"),
            label=label,
            label_y=(y1 if is_down else y2) + _LANES_APART / 2 + 4,
            told=f"{arrow.signal.value}: {arrow.begin_lane} → {arrow.end_lane}",
        )

    def _steps(self) -> Iterator[Text]:
        y = self._lanes[HOST].top + _TALL + 14
        for span in self._timeline.on(HOST):
            if span.depth == 0 and 0 < span.step <= self._timeline.num_steps:
                yield Text(x=self._x(span.begin_ns) + 3, y=y, kind="step", text=span.name)

    def _ticks(self) -> Iterator[Tick]:
        length_us = (self._timeline.end_ns - self._timeline.begin_ns) / _US
        whole_us = _PLOT / self._px_per_ns / _US
        every = next((own for own in _TIMES_US if whole_us / own <= _MOST_TICKS), _TIMES_US[-1])
        for number in range(int(length_us // every) + 1):
            at_us = number * every
            x = self._x(self._timeline.begin_ns + at_us * _US)
            label = f"{at_us / _US:g} ms" if number else "0"
            yield Tick(x=x, label=label if x + _width(label) < WIDTH else "")


_ARROW_WORDS = {
    Signal.LENGTHS_TO_HOST: "publish → host lengths",
    Signal.WAR_BARRIER: "WAR barrier",
}
_ABSENT = {COPY: "no such stream: no length crosses"}


def _width(text: str) -> float:
    return len(text) * LETTER_PX + 4


def _merged(gaps: Sequence[Gap]) -> _Idle:
    idle_ns = sum(gap.length_ns for gap in gaps)
    return _Idle(gaps[0].begin_ns, gaps[-1].end_ns, idle_ns)


def _is_wait(span: Span) -> bool:
    return span.kind is SpanKind.WAIT


def _is_part(span: Span) -> bool:
    return span.kind is SpanKind.WORK and span.depth == 1


def _us(length_ns: int) -> str:
    return f"{length_ns / _US:.0f}"
