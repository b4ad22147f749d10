"""A table that is filtered, sorted and opened: its shapes, its cells, and what each opens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal, Self

from backend_caps.report.sections import visible


class Glyph(Enum):
    """A shape with its meaning, drawn by the symbol of its name in `templates/glyphs.html`."""

    meaning: str

    DECLARED = "declared", "the backend states it"
    CONDITIONAL = "conditional", "depends on something"
    INHERITED = "inherited", "only a base class states it, so it counts as undeclared"
    UNDECLARED = "undeclared", "nobody states it, so it counts as the worst"
    BROKEN = "broken", "the declaration cannot be read"
    CONFLICT = "conflict", "several claim the name"
    SKIPPED = "skipped", "not asked for, or another goes before it"
    VERIFIED = "verified", "held when the kit looked, and nothing has changed since"
    STALE = "stale", "the kit looked, and something has changed since"
    FAILED = "failed", "did not hold when the kit looked"
    STRICTER = "stricter", "the engine must supply more, or the backend can do less"
    BECAME_CONDITIONAL = "became-conditional", "depends on a condition now"
    VANISHED = "vanished", "is not there any more"
    LOOSER = "looser", "the engine must supply less, or the backend can do more"
    APPEARED = "appeared", "was not there"
    BECAME_UNCONDITIONAL = "became-unconditional", "depends on no condition any more"
    CHANGED = "changed", "another, and neither stricter nor looser"

    def __new__(cls, symbol: str, meaning: str) -> Self:
        """Keep the meaning beside the symbol's name, which is the value."""
        glyph = object.__new__(cls)
        glyph._value_ = symbol
        glyph.meaning = meaning
        return glyph

    @classmethod
    def of(cls, symbol: str) -> Self:
        """Find a shape by its symbol's name, which a document has as origin, state or kind."""
        return next(glyph for glyph in cls if glyph.value == symbol)

    @property
    def label(self) -> str:
        """Its name in words."""
        return str(self.value).replace("-", " ")


Detail = tuple[tuple[str, str], ...]
"""What a cell opens: pairs of a term and its text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What a table shows in one place, and what it opens."""

    text: str
    glyph: Glyph | None = None
    """The shape before the text; without a text, its label stands for it."""
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
    """Whether the filter searches the heads of rows, or all cells."""
    corner: str
    """The name of the first column."""
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    counts: tuple[tuple[Glyph, int], ...] = ()
    """How many rows have a shape, where the legend shows it."""
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
