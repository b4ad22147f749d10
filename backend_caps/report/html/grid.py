"""A table that is filtered, sorted and opened: its cells, and what stands behind each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from backend_caps.report.html.glyphs import Glyph
from backend_caps.report.sections import visible

Detail = tuple[tuple[str, str], ...]
"""What a cell opens: terms, and what is told of each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What a table shows in one place, and what it opens."""

    text: str
    glyph: Glyph | None = None
    """The shape before the text; where there is no text, its label says all."""
    mark: Glyph | None = None
    """The shape behind the text."""
    note: str = ""
    """A line in small letters."""
    detail: Detail = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What a table shows of one subject."""

    head: Cell
    """Names the subject; what it opens is shown with each cell of the row."""
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """A table whose cells are opened."""

    caption: str
    """What it shows."""
    counted: str
    """What a row is, in the plural."""
    sought: str
    """What the text of a filter is looked for in, in words."""
    seeks: Literal["heads", "rows"]
    """The same: what names the rows, or all that they say."""
    corner: str
    """The name of the first column."""
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    counts: tuple[tuple[Glyph, int], ...] = ()
    """How many rows have a shape, where the legend tells it."""
    orders: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The values of a column from the least to the most, where they have an order of their own."""

    @property
    def legend(self) -> tuple[tuple[Glyph, int | None], ...]:
        """The shapes that it shows, each once, in their own order, with their counts."""
        shown = {glyph for cell in self._cells() for glyph in (cell.glyph, cell.mark)}
        counts = dict(self.counts)
        return tuple((glyph, counts.get(glyph)) for glyph in Glyph if glyph in shown)

    def _cells(self) -> Iterator[Cell]:
        for row in self.rows:
            yield from (row.head, *row.cells)

    def data(self) -> Mapping[str, Sequence[object]]:
        """Write what the cells open: each detail once, and for each row its cells' numbers.

        With them goes the order of each column's values; none where letters order them.
        """
        numbers: dict[Detail, int] = {}
        rows = [
            [numbers.setdefault(cell.detail, len(numbers)) for cell in (row.head, *row.cells)]
            for row in self.rows
        ]
        details = [[[visible(term), visible(text)] for term, text in told] for told in numbers]
        orders = [[*self.orders.get(name, ())] for name in (self.corner, *self.columns)]
        return {"details": details, "rows": rows, "orders": orders}
