"""What a difference is: statements, the kinds of change, the JSON of a comparison, its view.

The view begins with the counts: as markdown it is a comment on a pull request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

from pydantic import Field

from backend_caps.capability.declaration import When, declared
from backend_caps.capability.facts import text_of
from backend_caps.capability.kind import UNDECLARED, Kind, Scope
from backend_caps.capability.provenance import Origin
from backend_caps.capability.sets import Conflict, Unchecked
from backend_caps.capability.vocabulary import CAPABILITIES
from backend_caps.report.document import Document
from backend_caps.report.sections import Columns, Heading, Lines, Section, Table, table_of
from backend_caps.report.words import file_of

if TYPE_CHECKING:
    # A page needs this module's views, and no lock with what reads one.
    from backend_caps.report.lock import LockedBackend

_LONGEST = 240
"""Characters of a text that a cell holds."""


class DifferenceKind(Enum):
    """Kinds of change, the most important first."""

    OTHER_CHOICE = "other-choice"
    """The engine takes another backend for the same command line."""
    STRICTER = "stricter"
    """The engine must supply more, or the backend can do less."""
    BECAME_CONDITIONAL = "became-conditional"
    """Its value depends on a condition now."""
    VANISHED = "vanished"
    """It is not there any more."""
    LOOSER = "looser"
    """The engine must supply less, or the backend can do more."""
    APPEARED = "appeared"
    """It was not there."""
    BECAME_UNCONDITIONAL = "became-unconditional"
    """Its value depends on no condition any more."""
    CHANGED = "changed"
    """It differs, and is neither stricter nor looser."""


class Impact(Enum):
    """What a difference changes for a server, the most important first."""

    OTHER_BACKEND = "other backend taken"
    """The engine takes another backend for the same command line."""
    REFUSED = "may be refused now"
    """A server that started may not: a backend takes less, or cannot be read."""
    COSTS_MORE = "costs more"
    """The engine must supply more, always or on a condition."""
    GONE = "gone"
    """It is not there any more."""
    COSTS_LESS = "costs less"
    """The engine must supply less, or the backend can do more."""
    NEW = "new"
    """It was not there."""
    OTHER = "other"
    """It differs, and a server may not see it."""


_ORDER = (*DifferenceKind,)
_WORSE = frozenset({DifferenceKind.STRICTER, DifferenceKind.BECAME_CONDITIONAL})
_IMPACTS = {
    DifferenceKind.OTHER_CHOICE: Impact.OTHER_BACKEND,
    DifferenceKind.VANISHED: Impact.GONE,
    DifferenceKind.LOOSER: Impact.COSTS_LESS,
    DifferenceKind.BECAME_UNCONDITIONAL: Impact.COSTS_LESS,
    DifferenceKind.APPEARED: Impact.NEW,
    DifferenceKind.CHANGED: Impact.OTHER,
}
_LIMITS = frozenset(
    {"starts", "status", "page_sizes", "max_speculative_topk"}
    | {"two_batch_overlap", "deterministic", "batch_invariant"}
    | {name for name, kind in CAPABILITIES.items() if kind.scope is Scope.USE}
) - {"max_context_len_known", "auto_priority"}
"""What a plan is refused for where a backend has less of it; other values cost."""


class Statement(NamedTuple):
    """What one backend states of one capability."""

    value: object
    """The join over both ways of every condition; None where a composite leaves it to its parts."""
    base: str
    """The value outside of all conditions, in words."""
    origin: Origin
    """How `base` came to be: `DECLARED`, `INHERITED` or `UNDECLARED`."""
    conditions: tuple[str, ...]
    """The values under conditions, in words, sorted."""
    words: str
    """The value and its origin, in words."""


def statement_of(backend: LockedBackend, name: str) -> Statement:
    """Return a backend's statement on a capability; its declaration was read."""
    declaration = backend.declaration
    assert declaration is not None, "a declaration that was not read states nothing"
    reading = None if backend.engine_class is None else backend.engine_class.readings.get(name)
    whens = [when for when in declaration.conditions if name in when.capabilities.stated()]
    conditions = tuple(sorted(_condition(when, name) for when in whens))
    if not conditions and reading is not None and reading.origin is Origin.CONDITIONAL:
        conditions = (reading.words,)
    stated = declaration.capabilities.stated()
    base = text_of(stated.get(name, UNDECLARED))
    origin = Origin.DECLARED if name in stated else Origin.UNDECLARED
    if reading is not None and reading.origin is Origin.INHERITED:
        origin = Origin.INHERITED
    if declaration.parts and origin is Origin.UNDECLARED and not conditions:
        return Statement(None, base, origin, conditions, "left to its parts")
    value = comparable(name, declared(declaration, name, {})[0])
    if conditions:
        words = f"{text_of(value)} on a condition, else {base}"
    elif origin is Origin.DECLARED:
        words = text_of(value)
    else:
        base_class = reading.inherited_from if reading and origin is Origin.INHERITED else None
        source = f"inherited from {base_class}" if base_class else origin.value
        words = f"{source}, counts as {text_of(value)}"
    return Statement(value, base, origin, conditions, words)


def comparable(capability: str, value: object) -> object:
    """Return the one form of equal values: joined with the best."""
    kind = CAPABILITIES[capability]
    return kind.join(kind.best, value)


def _condition(when: When, capability: str) -> str:
    value = text_of(when.capabilities.stated()[capability])
    text = f"{value} where {when.given}"
    return text if str(when.given) in when.reason else f"{text}: {when.reason}"


def severity(capability: str, before: object, after: object) -> DifferenceKind | None:
    """Return which way a value changed; None where it is the same.

    Args:
        capability: whose value it is.
        before: as `comparable` writes it, or None where a composite leaves it to its parts.
        after: the same.
    """
    if before == after:
        return None
    if before is None or after is None:
        return DifferenceKind.CHANGED
    kind = CAPABILITIES[capability]
    was, is_ = _granted(kind, before), _granted(kind, after)
    if was != is_:
        return DifferenceKind.STRICTER if is_ < was else DifferenceKind.LOOSER
    joined = kind.join(before, after)
    if joined == after:
        return DifferenceKind.STRICTER
    return DifferenceKind.LOOSER if joined == before else DifferenceKind.CHANGED


def _granted(kind: Kind, value: object) -> int:
    """Rank a value by what it is sure to grant: unchecked sizes may grant nothing."""
    if isinstance(value, Conflict):
        return 0
    if isinstance(value, Unchecked):
        return 1 if value == kind.worst else 2
    return 3


class WhereDocument(Document):
    """Where each side's statement is."""

    before: str | None
    """`file:line` on the first side; null where it is not known."""
    after: str | None
    """`file:line` on the second side; null where it is not known."""


NOWHERE = WhereDocument(before=None, after=None)
"""The place of differences that are in no file."""


class DifferenceDocument(Document):
    """One difference between two sides."""

    kind: DifferenceKind
    """The kind of change."""
    subject: str
    """What it is about, such as `backend fa3`, `rule ngram` or `plan`."""
    field: str
    """The capability, or another property of the subject; empty for the whole subject."""
    before: str | None
    """The value before, in words; null where there was none."""
    after: str | None
    """The value after, in words; null where there is none."""
    where: WhereDocument
    """Where each side's statement is."""

    @property
    def impact(self) -> Impact:
        """What it changes for a server."""
        if self.kind in _WORSE:
            return Impact.REFUSED if self.field in _LIMITS else Impact.COSTS_MORE
        return _IMPACTS[self.kind]


def of_pair(
    subject: str,
    field: str,
    before: str | None,
    after: str | None,
    where: WhereDocument = NOWHERE,
    kind: DifferenceKind | None = None,
) -> Iterator[DifferenceDocument]:
    """Compare two texts; without a `kind`, one that is None has appeared or vanished."""
    if before == after:
        return
    if kind is None:
        kind = DifferenceKind.CHANGED
        if before is None or after is None:
            kind = DifferenceKind.APPEARED if before is None else DifferenceKind.VANISHED
    yield DifferenceDocument(
        kind=kind, subject=subject, field=field, before=before, after=after, where=where
    )


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


def in_order(differences: Iterable[DifferenceDocument]) -> tuple[DifferenceDocument, ...]:
    """Sort by kind, the most important first; a plan's first, then by subject."""
    return tuple(sorted(differences, key=_importance))


def _importance(difference: DifferenceDocument) -> tuple[int, bool, str, str, str, str]:
    texts = (difference.subject, difference.field, difference.before or "", difference.after or "")
    return (_ORDER.index(difference.kind), not difference.subject.startswith("plan"), *texts)


def diff_document(before: str, after: str, found: Sequence[DifferenceDocument]) -> DiffDocument:
    """Make the document of a comparison.

    Args:
        before: the first side, as it was named.
        after: the second side, as it was named.
        found: the differences, in order.
    """
    counts = Counter(difference.kind for difference in found)
    return DiffDocument(
        schema_="backend-caps/diff@1",
        before=before,
        after=after,
        counts={kind.value: counts[kind] for kind in DifferenceKind if kind in counts},
        differences=tuple(found),
    )


def diff_view(diff: DiffDocument) -> Iterator[Section]:
    """Show how many differences there are, then each by what it changes for a server."""
    if not diff.differences:
        yield Lines((f"Nothing differs between {diff.before} and {diff.after}.",))
        return
    groups = {
        impact: [each for each in diff.differences if each.impact is impact] for impact in Impact
    }
    shown = [f"{len(found)} {impact.value}" for impact, found in groups.items() if found]
    yield Lines((", ".join(shown), f"from {diff.before} to {diff.after}"))
    for impact, found in groups.items():
        if found:
            yield Heading(impact.value.capitalize())
            yield _table(impact, found)


def _table(impact: Impact, found: Sequence[DifferenceDocument]) -> Table:
    """Show differences of one impact, without empty columns."""
    columns: Columns[DifferenceDocument] = {
        "what, where": _subject,
        "how": lambda difference: difference.kind.value.replace("-", " "),
        "before": lambda difference: shortened(difference.before or "", "..."),
        "after": lambda difference: shortened(difference.after or "", "..."),
    }
    filled = {
        name: cell
        for name, cell in columns.items()
        if impact is Impact.OTHER or any(map(cell, found))
    }
    if len({each.kind for each in found}) == 1:
        del filled["how"]
    return table_of(found, filled)


def _subject(difference: DifferenceDocument) -> str:
    """Name the subject, field and place in one column: a terminal has no room for two."""
    name = ": ".join(part for part in (difference.subject, difference.field) if part)
    where = difference.where
    places = [file_of(place) for place in (where.before, where.after) if place]
    return "\n".join(filter(None, (name, " -> ".join(dict.fromkeys(places)))))


def shortened(text: str, ending: str) -> str:
    """Shorten an engine's own words, which may be a page long; the document has them all."""
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST].rstrip()} {ending}"
