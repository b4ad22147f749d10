"""All specimens, in the order in which tables show them."""

from __future__ import annotations

from tests.kit.honest_backends import HONEST_BACKENDS
from tests.kit.liars import declarations, dimensions, graphs, mirror, numbers, state, streams, whole
from tests.kit.specimen import Specimen

LIARS: tuple[Specimen, ...] = (
    *declarations.LIARS,
    *numbers.LIARS,
    *mirror.LIARS,
    *graphs.LIARS,
    *streams.LIARS,
    *state.LIARS,
    *whole.LIARS,
    *dimensions.LIARS,
)
SUBJECTS = {own.name: own.subject for own in (*LIARS, *HONEST_BACKENDS)}
"""Every one by its name."""
