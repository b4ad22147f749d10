"""From what a recorder kept to a timeline: blocks of operators, and the gaps between them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby, pairwise
from operator import attrgetter

from backend_caps.conformance.tracing.recorder import Ran
from backend_caps.report.trace_timeline import Gap, Span, SpanKind


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
