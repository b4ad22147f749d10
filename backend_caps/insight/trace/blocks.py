"""From operators and spans to a timeline: blocks of a region, and the gaps between operators."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from operator import attrgetter

from backend_caps.report.trace_timeline import HOST, Arrow, Gap, Span, SpanKind, TimedOp, Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """An operator, and whose."""

    lane: str
    region: str
    step: int
    op: TimedOp
    held_by: str
    """The lane that let it begin: its own, where nothing else did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """What is shown of a recording."""

    level: str
    begin_ns: int
    end_ns: int
    num_steps: int

    def meets(self, own: Span | Arrow | Gap) -> bool:
        """Tell whether something reaches into it."""
        return own.begin_ns < self.end_ns and own.end_ns > self.begin_ns


def timeline_of(
    stretch: Stretch,
    *,
    lanes: Sequence[str],
    host: Iterable[Span],
    ran: Sequence[Ran],
    arrows: Iterable[Arrow],
    bytes_to_host: int,
    bytes_of_lengths: int,
) -> Timeline:
    """Cut what was recorded to a stretch: what reaches into it is whole.

    Args:
        stretch: the steps that are shown.
        lanes: the streams, from the host down.
        host: what the host did.
        ran: operators, of each lane in their order.
        arrows: who waited for what.
        bytes_to_host: what crossed to the host in the stretch.
        bytes_of_lengths: that of it which is lengths.
    """
    nested = sorted(host, key=lambda own: (own.begin_ns, own.depth))
    spans = (*nested, *(block for lane in lanes for block in blocks(ran, lane)))
    idle = (gap for lane in lanes for gap in gaps(ran, lane))
    return Timeline(
        level=stretch.level,
        lanes=(HOST, *lanes),
        spans=tuple(filter(stretch.meets, spans)),
        arrows=tuple(filter(stretch.meets, arrows)),
        gaps=tuple(filter(stretch.meets, idle)),
        begin_ns=stretch.begin_ns,
        end_ns=stretch.end_ns,
        num_steps=stretch.num_steps,
        bytes_to_host=bytes_to_host,
        bytes_of_lengths=bytes_of_lengths,
    )


def blocks(ran: Iterable[Ran], lane: str) -> Iterator[Span]:
    """Put operators of one region and step that a stream runs one after the other together."""
    own = [each for each in ran if each.lane == lane]
    for (region, step), group in groupby(own, key=attrgetter("region", "step")):
        ops = tuple(each.op for each in group)
        yield Span(
            lane=lane,
            name=region,
            kind=SpanKind.WORK,
            step=step,
            begin_ns=ops[0].begin_ns,
            end_ns=ops[-1].end_ns,
            ops=ops,
        )


def gaps(ran: Iterable[Ran], lane: str) -> Iterator[Gap]:
    """List where a stream runs nothing between two operators, and who lets it go on."""
    own = [each for each in ran if each.lane == lane]
    for before, after in pairwise(own):
        if before.op.end_ns < after.op.begin_ns:
            yield Gap(
                lane=lane,
                begin_ns=before.op.end_ns,
                end_ns=after.op.begin_ns,
                waits_for=after.held_by,
            )
