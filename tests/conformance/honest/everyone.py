"""All odd backends, in the order in which the table shows them."""

from __future__ import annotations

from tests.conformance.honest import graphs, mirror, numbers, order, whole
from tests.conformance.honest.odd import Odd

HONEST_ODD: tuple[Odd, ...] = (*numbers.ODD, *mirror.ODD, *graphs.ODD, *order.ODD, *whole.ODD)
