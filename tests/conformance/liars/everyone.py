"""All liars, in the order in which the table shows them."""

from __future__ import annotations

from tests.conformance.liars import declarations, graphs, mirror, numbers, state, streams, whole
from tests.conformance.liars.liar import Liar

LIARS: tuple[Liar, ...] = (
    *declarations.LIARS,
    *numbers.LIARS,
    *mirror.LIARS,
    *graphs.LIARS,
    *streams.LIARS,
    *state.LIARS,
    *whole.LIARS,
)
