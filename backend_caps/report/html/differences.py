"""A comparison as a table: what it was beside what it is."""

from __future__ import annotations

from collections.abc import Iterator

from backend_caps.report.diff_document import DiffDocument, DifferenceDocument
from backend_caps.report.html.glyphs import Glyph
from backend_caps.report.html.grid import Cell, Grid, Row
from backend_caps.report.words import file_of

_LONGEST = 240
"""How much of an engine's own words a cell holds; it opens the whole."""


def side_by_side(diff: DiffDocument) -> Grid:
    """Put both sides of each difference beside each other, those that matter most first."""
    return Grid(
        caption=f"What differs between {diff.before} and {diff.after}",
        counted="differences",
        sought="any word",
        seeks="rows",
        corner="what",
        columns=("capability or field", "how", diff.before, diff.after),
        rows=tuple(map(_row, diff.differences)),
        counts=tuple((Glyph.of(kind), number) for kind, number in diff.counts.items()),
    )


def _row(found: DifferenceDocument) -> Row:
    glyph = Glyph.of(found.kind.value)
    sides = ((found.before, found.where.before), (found.after, found.where.after))
    return Row(
        head=Cell(text=found.subject, detail=tuple(_told_of(found, glyph))),
        cells=(
            Cell(text=found.field),
            Cell(text=glyph.label, glyph=glyph),
            *(Cell(text=_short(told), note=file_of(place or "")) for told, place in sides),
        ),
    )


def _told_of(found: DifferenceDocument, glyph: Glyph) -> Iterator[tuple[str, str]]:
    """Tell both sides in full, and where they stand."""
    yield glyph.label, glyph.meaning
    yield "before", found.before or "not there"
    if found.where.before:
        yield "stands at", found.where.before
    yield "after", found.after or "not there"
    if found.where.after:
        yield "stands at", found.where.after


def _short(told: str | None) -> str:
    text = told or "not there"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST].rstrip()} …"
