"""All liars, in the order in which the table shows them."""

from __future__ import annotations

from tests.kit.liars import declarations, graphs, mirror, numbers, state, streams, whole
from tests.kit.liars.liar import Liar

LIARS: tuple[Liar, ...] = (
    *declarations.LIARS,
    *numbers.LIARS,
    *mirror.LIARS,
    *graphs.LIARS,
    *streams.LIARS,
    *state.LIARS,
    *whole.LIARS,
)
