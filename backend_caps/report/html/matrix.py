"""The tables of pages: a report's matrix of backends, and a comparison side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from backend_caps.capability.scale import Scale
from backend_caps.capability.vocabulary import CAPABILITIES
from backend_caps.report.backend_views import EVIDENCE_COLUMNS, conditions_of, evidence_rows
from backend_caps.report.backends import BackendDocument, CapabilityDocument, ReportDocument
from backend_caps.report.difference import DiffDocument, DifferenceDocument
from backend_caps.report.html.grid import Cell, Detail, Glyph, Grid, Row
from backend_caps.report.plans import ProblemDocument
from backend_caps.report.sections import Heading, Section, Table
from backend_caps.report.words import file_of, words_of

_MARKS: Mapping[str | None, Glyph] = {
    "verified": Glyph.VERIFIED,
    "stale": Glyph.STALE,
    "failed": Glyph.FAILED,
}
_LONGEST = 240
"""How much of an engine's own words a cell holds; it opens the whole."""


def matrix(report: ReportDocument) -> Grid:
    """Put backends side by side; a capability that none of them states has no column.

    An engine's names are not in it: they say what the classes say that they stand for.
    """
    shown = [backend for backend in report.backends if backend.classes is None]
    runs = _runs(shown)
    columns = tuple(name for name in CAPABILITIES if any(each.states(name) for each in shown))
    return Grid(
        caption="What each backend says of each capability",
        counted="backends",
        sought="backend or distribution",
        seeks="heads",
        corner="backend",
        columns=columns,
        rows=tuple(_row(backend, columns, runs.get(backend.name, ())) for backend in shown),
        orders={
            name: tuple(words_of(member.value) for member in type(worst))
            for name in columns
            if isinstance(worst := CAPABILITIES[name].worst, Scale)
        },
    )


def _runs(backends: Sequence[BackendDocument]) -> Mapping[str, Detail]:
    """Return, by backend, the run of its evidence and what speaks against it."""
    return {
        name: tuple(zip(EVIDENCE_COLUMNS[1:], told, strict=True))
        for name, *told in evidence_rows(backends)
    }


def _row(backend: BackendDocument, columns: Sequence[str], run: Detail) -> Row:
    head = Cell(
        text=backend.name.rpartition(".")[2] if backend.class_ else backend.name,
        glyph=None if backend.status == "ok" else Glyph.of(backend.status),
        note=_note(backend),
        detail=(*_head_detail(backend), *run, *map(_problem, backend.problems)),
    )
    return Row(head=head, cells=tuple(_cell(backend, column) for column in columns))


def _note(backend: BackendDocument) -> str:
    """Name what ships a backend; for an engine's class, its names in flags and its file."""
    if backend.class_ is None:
        return " ".join(part for part in (backend.distribution, backend.version) if part)
    names = ", ".join(backend.registered_as or ())
    return "\n".join(part for part in (names, file_of(backend.declared_at or "")) if part)


def _head_detail(backend: BackendDocument) -> Iterator[tuple[str, str]]:
    told = {
        "status": backend.status,
        "distribution": backend.distribution,
        "version": backend.version,
        "declared at": backend.declared_at,
        "class": backend.class_,
        "registered as": ", ".join(backend.registered_as or ()),
        "hands its uses to": ", ".join(backend.parts or ()),
        "as a wrapper": backend.composite,
    }
    yield from ((term, text) for term, text in told.items() if text)
    for engine, place in sorted((backend.adapters or {}).items()):
        yield f"becomes a backend of {engine} by", place
    for name, reading in (backend.attributes or {}).items():
        yield f"attribute {name}", reading.words


def _problem(problem: ProblemDocument) -> tuple[str, str]:
    return f"problem {problem.code}", f"{problem.message} {problem.remedy}"


def _cell(backend: BackendDocument, capability: str) -> Cell:
    said = backend.capabilities.get(capability)
    if said is None:
        glyph = Glyph.UNDECLARED if backend.status == "ok" else Glyph.of(backend.status)
        return Cell(text="", glyph=glyph, detail=(("origin", glyph.label),))
    glyph = Glyph.CONDITIONAL if said.when else Glyph.of(said.origin)
    return Cell(
        text="" if glyph is Glyph.UNDECLARED else _value(said),
        glyph=glyph,
        mark=_MARKS.get(said.evidence),
        detail=tuple(_detail(said, glyph)),
    )


def _value(said: CapabilityDocument) -> str:
    return "depends" if said.value in ("depends", "undeclared") else words_of(said.value)


def _detail(said: CapabilityDocument, glyph: Glyph) -> Iterator[tuple[str, str]]:
    """List a value, its origin and its evidence."""
    if glyph is not Glyph.UNDECLARED:
        yield "value", _value(said)
    yield "origin", f"{glyph.label}: {glyph.meaning}"
    for when in said.when or ():
        yield f"{words_of(when.value)} where", f"{when.given}\n{when.reason}"
    if said.words is not None:
        yield "the source says", said.words
    if said.declared_at is not None:
        yield "stated at", said.declared_at
    if said.inherited_from is not None:
        yield "inherited from", said.inherited_from
    if said.evidence is not None:
        mark = _MARKS.get(said.evidence)
        yield "evidence", said.evidence if mark is None else f"{mark.label}: {mark.meaning}"


def conditions_view(report: ReportDocument) -> Iterator[Section]:
    """List what holds under conditions, for the printed page; empty where nothing does."""
    rows = tuple(
        (backend.name, name, words_of(when.value), when.given, when.reason, file_of(place))
        for backend, name, said, when in conditions_of(report.backends)
        for place in (said.declared_at or backend.declared_at or "",)
    )
    if rows:
        yield Heading("Conditions")
        yield Table(("backend", "capability", "is", "where", "why", "stated at"), rows)


def side_by_side(diff: DiffDocument) -> Grid:
    """Put both sides of each difference beside each other, those that matter most first."""
    return Grid(
        caption=f"What differs between {diff.before} and {diff.after}",
        counted="differences",
        sought="any word",
        seeks="rows",
        corner="what",
        columns=("capability or field", "how", diff.before, diff.after),
        rows=tuple(map(_difference_row, diff.differences)),
        counts=tuple((Glyph.of(kind), number) for kind, number in diff.counts.items()),
    )


def _difference_row(found: DifferenceDocument) -> Row:
    glyph = Glyph.of(found.kind.value)
    sides = ((found.before, found.where.before), (found.after, found.where.after))
    return Row(
        head=Cell(text=found.subject, detail=tuple(_both_sides(found, glyph))),
        cells=(
            Cell(text=found.field),
            Cell(text=glyph.label, glyph=glyph),
            *(Cell(text=_short(told), note=file_of(place or "")) for told, place in sides),
        ),
    )


def _both_sides(found: DifferenceDocument, glyph: Glyph) -> Iterator[tuple[str, str]]:
    """List both sides in full, and where they stand."""
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
