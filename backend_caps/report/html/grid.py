"""Tables of pages that readers filter, sort and open: a matrix, and a comparison."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Self

from backend_caps.capability.kind import Scale
from backend_caps.capability.vocabulary import CAPABILITIES
from backend_caps.report.backend_views import EVIDENCE_COLUMNS, conditions_of, evidence_rows
from backend_caps.report.backends import BackendDocument, CapabilityDocument, ReportDocument
from backend_caps.report.difference import DiffDocument, DifferenceDocument, shortened
from backend_caps.report.sections import Section, titled_table, visible
from backend_caps.report.words import file_of, words_of


class Glyph(Enum):
    """A shape with its meaning, drawn by the symbol of its name in `templates/glyphs.html`."""

    meaning: str

    DECLARED = "declared", "the backend states it"
    CONDITIONAL = "conditional", "depends on something"
    INHERITED = "inherited", "only a base class states it, so it counts as undeclared"
    UNDECLARED = "undeclared", "not stated, so it counts as the worst"
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
        """Find a shape by its symbol's name: a document's origin, state or kind."""
        return next(glyph for glyph in cls if glyph.value == symbol)

    @property
    def label(self) -> str:
        """Its name in words."""
        return str(self.value).replace("-", " ")


Detail = tuple[tuple[str, str], ...]
"""The text that a cell opens: pairs of a term and its text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One cell of a table, and the text that it opens."""

    text: str
    glyph: Glyph | None = None
    """The shape before the text; without a text, its label stands for it."""
    mark: Glyph | None = None
    """The shape behind the text."""
    note: str = ""
    """A line in small letters."""
    detail: Detail = ()


Row = tuple[Cell, ...]
"""The row of one subject. The first cell names it; its detail is shown with that of each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """A table whose cells are opened."""

    columns: tuple[str, ...]
    """The names of the columns, the first one's included."""
    rows: tuple[Row, ...]
    counts: tuple[tuple[Glyph, int], ...] = ()
    """How many rows have a shape, where the legend shows it."""
    orders: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The values of a column from the least to the most, where they have an order of their own."""

    @property
    def legend(self) -> tuple[tuple[Glyph, int | None], ...]:
        """The shapes that it shows, each once, in the order of `Glyph`, with their counts."""
        shown = {glyph for row in self.rows for cell in row for glyph in (cell.glyph, cell.mark)}
        counts = dict(self.counts)
        return tuple((glyph, counts.get(glyph)) for glyph in Glyph if glyph in shown)

    def data(self) -> Mapping[str, Sequence[object]]:
        """Write the cells' details: each detail once, and by row the numbers of its details.

        The order of each column's values goes with them; it is empty where letters order them.
        """
        numbers: dict[Detail, int] = {}
        rows = [[numbers.setdefault(c.detail, len(numbers)) for c in row] for row in self.rows]
        details = [[[visible(term), visible(text)] for term, text in detail] for detail in numbers]
        orders = [[*self.orders.get(name, ())] for name in self.columns]
        return {"details": details, "rows": rows, "orders": orders}


_MARKS: Mapping[str | None, Glyph] = {
    glyph.label: glyph for glyph in (Glyph.VERIFIED, Glyph.STALE, Glyph.FAILED)
}


def matrix(report: ReportDocument) -> Grid:
    """Put backends side by side; a capability that none of them states has no column.

    An engine's names are left out: they declare what their classes declare.
    """
    shown = [backend for backend in report.backends if backend.classes is None]
    # By backend, the run of its evidence and what speaks against it.
    runs = {
        name: tuple(zip(EVIDENCE_COLUMNS[1:], row, strict=True))
        for name, *row in evidence_rows(shown)
    }
    stated = [name for name in CAPABILITIES if any(each.states(name) for each in shown)]
    return Grid(
        columns=("backend", *stated),
        rows=tuple(_row(backend, stated, runs.get(backend.name, ())) for backend in shown),
        orders={
            name: tuple(words_of(member.value) for member in type(worst))
            for name in stated
            if isinstance(worst := CAPABILITIES[name].worst, Scale)
        },
    )


def _row(backend: BackendDocument, columns: Sequence[str], run: Detail) -> Row:
    problems = [(f"problem {p.code}", f"{p.message} {p.remedy}") for p in backend.problems]
    head = Cell(
        text=backend.name.rpartition(".")[2] if backend.class_ else backend.name,
        glyph=None if backend.status == "ok" else Glyph.of(backend.status),
        note=_note(backend),
        detail=(*_head_detail(backend), *run, *problems),
    )
    return (head, *(_cell(backend, column) for column in columns))


def _note(backend: BackendDocument) -> str:
    """Name what ships a backend; for an engine's class, its names in flags and its file."""
    if backend.class_ is None:
        return " ".join(part for part in (backend.distribution, backend.version) if part)
    names = ", ".join(backend.registered_as or ())
    return "\n".join(filter(None, (names, file_of(backend.declared_at or ""))))


def _head_detail(backend: BackendDocument) -> Iterator[tuple[str, str]]:
    terms = {
        "status": backend.status,
        "distribution": backend.distribution,
        "version": backend.version,
        "declared at": backend.declared_at,
        "class": backend.class_,
        "registered as": ", ".join(backend.registered_as or ()),
        "hands its uses to": ", ".join(backend.parts or ()),
        "as a wrapper": backend.composite,
    }
    yield from ((term, text) for term, text in terms.items() if text)
    for engine, place in sorted((backend.adapters or {}).items()):
        yield f"becomes a backend of {engine} by", place
    for name, reading in (backend.attributes or {}).items():
        yield f"attribute {name}", reading.words


def _cell(backend: BackendDocument, capability: str) -> Cell:
    stated = backend.capabilities.get(capability)
    if stated is None:
        glyph = Glyph.UNDECLARED if backend.status == "ok" else Glyph.of(backend.status)
        return Cell(text="", glyph=glyph, detail=(("origin", glyph.label),))
    glyph = Glyph.CONDITIONAL if stated.when else Glyph.of(stated.origin)
    return Cell(
        text="" if glyph is Glyph.UNDECLARED else _value(stated),
        glyph=glyph,
        mark=_MARKS.get(stated.evidence),
        detail=tuple(_detail(stated, glyph)),
    )


def _value(stated: CapabilityDocument) -> str:
    return "depends" if stated.value in ("depends", "undeclared") else words_of(stated.value)


def _detail(stated: CapabilityDocument, glyph: Glyph) -> Iterator[tuple[str, str]]:
    """List a value, its origin and its evidence."""
    if glyph is not Glyph.UNDECLARED:
        yield "value", _value(stated)
    yield "origin", f"{glyph.label}: {glyph.meaning}"
    for when in stated.when or ():
        yield f"{words_of(when.value)} where", f"{when.given}\n{when.reason}"
    if stated.words is not None:
        yield "the source says", stated.words
    if stated.declared_at is not None:
        yield "stated at", stated.declared_at
    if stated.inherited_from is not None:
        yield "inherited from", stated.inherited_from
    if stated.evidence is not None:
        mark = _MARKS.get(stated.evidence)
        yield "evidence", stated.evidence if mark is None else f"{mark.label}: {mark.meaning}"


def conditions_view(report: ReportDocument) -> Iterator[Section]:
    """List the values under conditions, if there are any: a printed page opens no cell."""
    rows = tuple(
        (backend.name, name, words_of(when.value), when.given, when.reason, file_of(place))
        for backend, name, stated, when in conditions_of(report.backends)
        for place in (stated.declared_at or backend.declared_at or "",)
    )
    columns = ("backend", "capability", "is", "where", "why", "stated at")
    return titled_table("Conditions", columns, rows)


def side_by_side(diff: DiffDocument) -> Grid:
    """Put both sides of each difference beside each other, those that matter most first."""
    return Grid(
        columns=("what", "capability or field", "how", diff.before, diff.after),
        rows=tuple(map(_difference_row, diff.differences)),
        counts=tuple((Glyph.of(kind), number) for kind, number in diff.counts.items()),
    )


def _difference_row(difference: DifferenceDocument) -> Row:
    glyph = Glyph.of(difference.kind.value)
    cells, detail = [Cell(text=difference.field), Cell(text=glyph.label, glyph=glyph)], []
    sides = {
        "before": (difference.before, difference.where.before),
        "after": (difference.after, difference.where.after),
    }
    for side, (words, place) in sides.items():
        text = words or "not there"
        cells.append(Cell(text=shortened(text, "…"), note=file_of(place or "")))
        detail += [(side, text), *([("stands at", place)] if place else [])]
    head = Cell(text=difference.subject, detail=((glyph.label, glyph.meaning), *detail))
    return (head, *cells)
