"""From a profiler's export to a timeline: streams get their names, and waits their arrows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from backend_caps.insight.trace.blocks import Ran, Stretch, timeline_of
from backend_caps.insight.trace.kineto import (
    STEP,
    Activity,
    Call,
    Export,
    HostWait,
    Range,
    Recorded,
)
from backend_caps.insight.trace.signals import Point, Waiting, arrow
from backend_caps.report.trace_timeline import (
    COPY,
    FORWARD,
    HOST,
    HOST_COPY,
    SCHEDULE,
    WAITED_FOR,
    Arrow,
    Span,
    SpanKind,
    TimedOp,
    Timeline,
)

_RESOLVES = "resolve_seq_lens_cpu"


def measured(export: Export, *, level: str, num_steps: int) -> Timeline:
    """Make a timeline of what a profiler told.

    Args:
        export: what it told; its regions are `forward`, `launch` and so on, in `step 1` …
        level: what the host is told about lengths.
        num_steps: the steps that are shown, from 1.
    """
    return _Reading(export).timeline(level, num_steps)


class _Reading:
    def __init__(self, export: Export) -> None:
        self._export = export
        self._zero_ns = min((own.begin_ns for own in export.ranges), default=0)
        self._of_stream: dict[int, list[Activity]] = {}
        for own in sorted(export.activities, key=lambda own: own.begin_ns):
            self._of_stream.setdefault(own.stream, []).append(own)
        self._lanes = {stream: _lane(stream, own) for stream, own in self._of_stream.items()}

    def timeline(self, level: str, num_steps: int) -> Timeline:
        """Cut the steps out."""
        steps = {
            int(own.name.removeprefix(STEP)): own
            for own in self._export.ranges
            if own.name.startswith(STEP)
        }
        begin_ns, end_ns = steps[1].begin_ns, steps[num_steps].end_ns
        crossed = [
            own
            for own in self._export.activities
            if own.is_to_host and begin_ns <= own.begin_ns < end_ns
        ]
        return timeline_of(
            Stretch(
                level=level,
                begin_ns=begin_ns - self._zero_ns,
                end_ns=end_ns - self._zero_ns,
                num_steps=num_steps,
            ),
            lanes=[*dict.fromkeys(self._lanes[own] for own in sorted(self._of_stream))],
            host=(*self._ranges(), *self._waits()),
            ran=[*self._ran()],
            arrows=(*self._stream_arrows(), *self._host_arrows()),
            bytes_to_host=sum(own.num_bytes for own in crossed),
            bytes_of_lengths=sum(
                own.num_bytes for own in crossed if self._lanes[own.stream] == COPY
            ),
        )

    def _ran(self) -> Iterator[Ran]:
        for stream, activities in self._of_stream.items():
            ended_ns = 0
            for own in activities:
                yield Ran(
                    lane=self._lanes[stream],
                    region=own.call.region,
                    step=own.call.step,
                    op=self._op(own),
                    held_by=self._holder(own, ended_ns - self._zero_ns),
                )
                ended_ns = own.end_ns

    def _op(self, own: Activity) -> TimedOp:
        return TimedOp(
            name=own.name,
            begin_ns=own.begin_ns - self._zero_ns,
            end_ns=own.end_ns - self._zero_ns,
            launched_ns=own.call.end_ns - self._zero_ns,
            replayed="GraphLaunch" in own.call.name,
            site=None,
            num_bytes=own.num_bytes,
        )

    def _holder(self, own: Activity, ended_ns: int) -> str:
        """Name what came last: its launch, an event of another stream, or its own one's end."""
        lane, launched_ns = self._lanes[own.stream], own.call.end_ns - self._zero_ns
        reasons = [(ended_ns, lane), (launched_ns, HOST)]
        for wait in self._export.stream_waits:
            if wait.stream == own.stream and self._next(wait.stream, wait.call) is own:
                point = self._point(wait.recorded)
                reasons += [] if point is None else [(point.time_ns, point.lane)]
        return max(reasons, key=lambda reason: reason[0])[1]

    def _ranges(self) -> Iterator[Span]:
        for own in self._export.ranges:
            outer = [each.name for each in self._export.ranges if _lies_in(own, each)]
            steps = [name for name in (*outer, own.name) if name.startswith(STEP)]
            yield self._host_span(
                own.name,
                SpanKind.WORK,
                (own.begin_ns, own.end_ns),
                step=int(steps[-1].removeprefix(STEP)) if steps else 0,
                depth=len(outer),
            )

    def _waits(self) -> Iterator[Span]:
        for own in self._export.host_waits:
            lane = self._awaited(own)
            what = f"wait for {WAITED_FOR[lane]}" if lane in WAITED_FOR else own.call.name
            yield self._host_span(
                what,
                SpanKind.WAIT,
                (own.call.begin_ns, own.call.end_ns),
                step=own.call.step,
                depth=len(own.call.path),
                for_lane=lane,
            )

    def _host_span(
        self,
        name: str,
        kind: SpanKind,
        times_ns: tuple[int, int],
        *,
        step: int,
        depth: int,
        for_lane: str | None = None,
    ) -> Span:
        begin_ns, end_ns = times_ns
        return Span(
            lane=HOST,
            name=name,
            kind=kind,
            step=step,
            begin_ns=begin_ns - self._zero_ns,
            end_ns=end_ns - self._zero_ns,
            depth=depth,
            for_lane=for_lane,
        )

    def _awaited(self, wait: HostWait) -> str | None:
        """Name the stream that the host waits for; None: not known, or all of them."""
        return None if wait.recorded is None else self._lanes.get(wait.recorded.stream)

    def _stream_arrows(self) -> Iterator[Arrow]:
        for wait in self._export.stream_waits:
            point, held = self._point(wait.recorded), self._next(wait.stream, wait.call)
            if point is None or held is None or point.lane == self._lanes[wait.stream]:
                continue
            waiting = Waiting(
                lane=self._lanes[wait.stream], region=wait.call.region, step=wait.call.step
            )
            yield arrow(point, waiting, held.begin_ns - self._zero_ns)

    def _host_arrows(self) -> Iterator[Arrow]:
        for wait in self._export.host_waits:
            point = None if wait.recorded is None else self._point(wait.recorded)
            if point is not None:
                waiting = Waiting(lane=HOST, region=wait.call.region, step=wait.call.step)
                yield arrow(point, waiting, wait.call.end_ns - self._zero_ns)

    def _point(self, recorded: Recorded) -> Point | None:
        """Say when an event was there: at the end of what its stream had been given by then."""
        before = [
            own
            for own in self._of_stream.get(recorded.stream, ())
            if own.call.begin_ns < recorded.call.begin_ns
        ]
        if not before:
            return None
        time_ns = before[-1].end_ns - self._zero_ns
        lane = self._lanes[recorded.stream]
        return Point(lane=lane, time_ns=time_ns, region=recorded.call.region)

    def _next(self, stream: int, call: Call) -> Activity | None:
        later = (
            own for own in self._of_stream.get(stream, ()) if own.call.begin_ns > call.begin_ns
        )
        return next(later, None)


def _lane(stream: int, activities: Sequence[Activity]) -> str:
    """Name a stream by what is launched on it most often."""
    votes: Counter[str] = Counter(filter(None, map(_vote, activities)))
    return votes.most_common(1)[0][0] if votes else f"stream {stream}"


def _vote(own: Activity) -> str | None:
    path = own.call.path
    if "forward" in path or "resolve_future" in path:
        return FORWARD
    if _RESOLVES in path:
        return COPY if own.is_to_host else SCHEDULE
    if "build batch" in path:
        return SCHEDULE
    return HOST_COPY if "launch" in path and own.is_to_host else None


def _lies_in(inner: Range, outer: Range) -> bool:
    if inner is outer:
        return False
    return outer.begin_ns <= inner.begin_ns and inner.end_ns <= outer.end_ns
