"""The matrix of a report: a row for each backend, a column for each capability."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from backend_caps.capability.scale import Scale
from backend_caps.capability.vocabulary import CAPABILITIES
from backend_caps.report.documents import (
    BackendDocument,
    CapabilityDocument,
    ProblemDocument,
    ReportDocument,
)
from backend_caps.report.evidence_views import EVIDENCE_COLUMNS, evidence_rows
from backend_caps.report.html.glyphs import Glyph
from backend_caps.report.html.grid import Cell, Detail, Grid, Row
from backend_caps.report.sections import Heading, Section, Table
from backend_caps.report.views import conditions_of
from backend_caps.report.words import file_of, words_of

_MARKS: Mapping[str | None, Glyph] = {
    "verified": Glyph.VERIFIED,
    "stale": Glyph.STALE,
    "failed": Glyph.FAILED,
}


def matrix(report: ReportDocument) -> Grid:
    """Put what backends say side by side; what none of them states has no column.

    An engine's names are not in it: they say what the classes say that they stand for.
    """
    shown = [backend for backend in report.backends if backend.classes is None]
    runs = _runs(shown)
    columns = tuple(name for name in CAPABILITIES if any(_says(each, name) for each in shown))
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


def _says(backend: BackendDocument, capability: str) -> bool:
    said = backend.capabilities.get(capability)
    return said is not None and (said.origin != "undeclared" or said.when is not None)


def _runs(backends: Sequence[BackendDocument]) -> Mapping[str, Detail]:
    """Tell of each backend with evidence where that comes from, and what speaks against it."""
    return {
        name: tuple(zip(EVIDENCE_COLUMNS[1:], told, strict=True))
        for name, *told in evidence_rows(backends)
    }


def _row(backend: BackendDocument, columns: Sequence[str], run: Detail) -> Row:
    head = Cell(
        text=backend.name.rpartition(".")[2] if backend.class_ else backend.name,
        glyph=None if backend.status == "ok" else Glyph.of(backend.status),
        note=_note(backend),
        detail=(*_told_of(backend), *run, *map(_problem, backend.problems)),
    )
    return Row(head=head, cells=tuple(_cell(backend, column) for column in columns))


def _note(backend: BackendDocument) -> str:
    """Tell what ships a backend; of an engine's class, its names in flags and its file."""
    if backend.class_ is None:
        return " ".join(part for part in (backend.distribution, backend.version) if part)
    names = ", ".join(backend.registered_as or ())
    return "\n".join(part for part in (names, file_of(backend.declared_at or "")) if part)


def _told_of(backend: BackendDocument) -> Iterator[tuple[str, str]]:
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
        detail=tuple(_said(said, glyph)),
    )


def _value(said: CapabilityDocument) -> str:
    return "depends" if said.value in ("depends", "undeclared") else words_of(said.value)


def _said(said: CapabilityDocument, glyph: Glyph) -> Iterator[tuple[str, str]]:
    """Tell a value, how it came to be, and what speaks for it."""
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
    """List what holds under conditions, for whoever prints the page; nothing where nothing does."""
    rows = tuple(
        (backend.name, name, words_of(when.value), when.given, when.reason, file_of(place))
        for backend, name, said, when in conditions_of(report.backends)
        for place in (said.declared_at or backend.declared_at or "",)
    )
    if rows:
        yield Heading("Conditions")
        yield Table(("backend", "capability", "is", "where", "why", "stated at"), rows)
