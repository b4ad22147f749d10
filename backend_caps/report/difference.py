"""One difference between two sides, the JSON of a comparison, and its view.

The view begins with the counts: as markdown it is a comment on a pull request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from typing import Annotated, Literal

from pydantic import Field

from backend_caps.report.document import Document
from backend_caps.report.sections import Columns, Heading, Lines, Section, Table, table_of
from backend_caps.report.words import file_of

_LONGEST = 240
"""Characters of a text that a cell holds."""


class DifferenceKind(Enum):
    """Which way something differs, the most important first."""

    STRICTER = "stricter"
    """The engine must supply more, or the backend can do less."""
    BECAME_CONDITIONAL = "became-conditional"
    """What it says depends on a condition now."""
    VANISHED = "vanished"
    """It is not there any more."""
    LOOSER = "looser"
    """The engine must supply less, or the backend can do more."""
    APPEARED = "appeared"
    """It was not there."""
    BECAME_UNCONDITIONAL = "became-unconditional"
    """What it says depends on no condition any more."""
    CHANGED = "changed"
    """It is another, and neither stricter nor looser."""


_ORDER = {kind: at for at, kind in enumerate(DifferenceKind)}
_COUNTED = (
    DifferenceKind.APPEARED,
    DifferenceKind.VANISHED,
    DifferenceKind.STRICTER,
    DifferenceKind.LOOSER,
    DifferenceKind.BECAME_CONDITIONAL,
    DifferenceKind.BECAME_UNCONDITIONAL,
    DifferenceKind.CHANGED,
)
"""The kinds in the order in which their counts are shown."""


class WhereDocument(Document):
    """Where the two sides say something."""

    before: str | None
    """`file:line` on the first side; null where it is not known."""
    after: str | None
    """`file:line` on the second side; null where it is not known."""


NOWHERE = WhereDocument(before=None, after=None)
"""Of what stands in no file."""


class DifferenceDocument(Document):
    """One thing that is not the same on both sides."""

    kind: DifferenceKind
    """Which way it differs."""
    subject: str
    """What it is about, such as `backend fa3`, `rule ngram` or `plan`."""
    field: str
    """The capability, or what else of the subject; empty for the whole of it."""
    before: str | None
    """What it was, in words; null where it was not there."""
    after: str | None
    """What it is, in words; null where it is not there."""
    where: WhereDocument
    """Where the two sides say so."""


class DiffDocument(Document):
    """What differs between two sides."""

    schema_: Annotated[Literal["backend-caps/diff@1"], Field(alias="schema")]
    before: str
    """The first side, as it was named."""
    after: str
    """The second side, as it was named."""
    counts: dict[str, int]
    """How many differences there are of each kind; a kind without any is left out."""
    differences: tuple[DifferenceDocument, ...]
    """Every difference, the most important first."""


def in_order(found: Iterable[DifferenceDocument]) -> tuple[DifferenceDocument, ...]:
    """Sort differences, the most important first; a plan's first, then by subject."""
    return tuple(sorted(found, key=_importance))


def _importance(found: DifferenceDocument) -> tuple[int, bool, str, str, str, str]:
    texts = (found.subject, found.field, found.before or "", found.after or "")
    return (_ORDER[found.kind], not found.subject.startswith("plan"), *texts)


def diff_document(before: str, after: str, found: Sequence[DifferenceDocument]) -> DiffDocument:
    """Write the document of a comparison.

    Args:
        before: the first side, as it was named.
        after: the second side, as it was named.
        found: in order.
    """
    counts = Counter(each.kind for each in found)
    return DiffDocument(
        schema_="backend-caps/diff@1",
        before=before,
        after=after,
        counts={kind.value: counts[kind] for kind in DifferenceKind if kind in counts},
        differences=tuple(found),
    )


def diff_view(diff: DiffDocument) -> Iterator[Section]:
    """Show how many differences there are, then each, the most important first."""
    if not diff.differences:
        yield Lines((f"Nothing differs between {diff.before} and {diff.after}.",))
        return
    counts = diff.counts
    shown = [f"{counts[k.value]} {_name(k)}" for k in _COUNTED if k.value in counts]
    yield Lines((", ".join(shown), f"from {diff.before} to {diff.after}"))
    for kind in DifferenceKind:
        found = [each for each in diff.differences if each.kind is kind]
        if found:
            yield Heading(_name(kind).capitalize())
            yield _table(kind, found)


def _name(kind: DifferenceKind) -> str:
    return kind.value.replace("-", " ")


def _table(kind: DifferenceKind, found: Sequence[DifferenceDocument]) -> Table:
    """Show differences of one kind, without the columns that none of them fills."""
    columns: Columns[DifferenceDocument] = {
        "what, where": _subject,
        "before": lambda own: shortened(own.before or "", "..."),
        "after": lambda own: shortened(own.after or "", "..."),
    }
    is_whole = kind is DifferenceKind.CHANGED
    filled = {name: cell for name, cell in columns.items() if is_whole or any(map(cell, found))}
    return table_of(found, filled)


def _subject(found: DifferenceDocument) -> str:
    """Name what differs, and where, in one column: a terminal has no room for two."""
    name = ": ".join(part for part in (found.subject, found.field) if part)
    places = [file_of(place) for place in (found.where.before, found.where.after) if place]
    return "\n".join(filter(None, (name, " -> ".join(dict.fromkeys(places)))))


def shortened(text: str, ending: str) -> str:
    """Shorten an engine's own words, which may be a page long; the document has them all."""
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST].rstrip()} {ending}"
