"""All odd backends, in the order in which the table shows them."""

from __future__ import annotations

from tests.kit.honest import graphs, mirror, numbers, order, whole
from tests.kit.honest.odd import Odd

HONEST_ODD: tuple[Odd, ...] = (*numbers.ODD, *mirror.ODD, *graphs.ODD, *order.ODD, *whole.ODD)
