"""A comparison as sections: one content for every textual format.

The counts stand first: as markdown it is a comment on a pull request.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from backend_caps.report.diff import DifferenceKind
from backend_caps.report.diff_document import DiffDocument, DifferenceDocument, WhereDocument
from backend_caps.report.sections import Heading, Lines, Section, Table
from backend_caps.report.words import file_of

_COUNTED = (
    DifferenceKind.APPEARED,
    DifferenceKind.VANISHED,
    DifferenceKind.STRICTER,
    DifferenceKind.LOOSER,
    DifferenceKind.BECAME_CONDITIONAL,
    DifferenceKind.BECAME_UNCONDITIONAL,
    DifferenceKind.CHANGED,
)
"""The kinds in the order in which their counts are told."""

_LONGEST = 240
"""How much of a text a cell holds."""


def diff_view(diff: DiffDocument) -> Iterator[Section]:
    """Show how many differences there are, then each, those that matter most first."""
    if not diff.differences:
        yield Lines((f"Nothing differs between {diff.before} and {diff.after}.",))
        return
    yield Lines((_counts(diff), f"from {diff.before} to {diff.after}"))
    for kind in DifferenceKind:
        found = [each for each in diff.differences if each.kind is kind]
        if found:
            yield Heading(_name(kind).capitalize())
            yield _table(kind, found)


def _counts(diff: DiffDocument) -> str:
    counts = diff.counts
    return ", ".join(f"{counts[k.value]} {_name(k)}" for k in _COUNTED if k.value in counts)


def _name(kind: DifferenceKind) -> str:
    return kind.value.replace("-", " ")


def _table(kind: DifferenceKind, found: Sequence[DifferenceDocument]) -> Table:
    """Show differences of one kind, without the columns that none of them fills."""
    rows = [(_what(each), _text(each.before), _text(each.after)) for each in found]
    columns = ("what, where", "before", "after")
    kept = [
        at
        for at, column in enumerate(columns)
        if any(row[at] for row in rows)
        or (kind is DifferenceKind.CHANGED and column in {"before", "after"})
    ]
    return Table(
        tuple(columns[at] for at in kept),
        tuple(tuple(row[at] for at in kept) for row in rows),
    )


def _what(difference: DifferenceDocument) -> str:
    """Name what differs, and where, in one column: a terminal has no room for two."""
    name = ": ".join(part for part in (difference.subject, difference.field) if part)
    return "\n".join(filter(None, (name, _place(difference.where))))


def _text(told: str | None) -> str:
    """Shorten an engine's own words, which may be a page long; the document has the whole."""
    text = told or ""
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST].rstrip()} ..."


def _place(where: WhereDocument) -> str:
    """Tell where both sides say so, the file once where it is the same."""
    places = [file_of(place) for place in (where.before, where.after) if place]
    return " -> ".join(dict.fromkeys(places))
