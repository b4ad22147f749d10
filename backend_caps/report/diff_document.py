"""The JSON of a comparison: what crosses the edge, with a published schema."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from backend_caps.capability.model import FrozenModel
from backend_caps.report.diff import Difference, DifferenceKind


class _Document(FrozenModel):
    model_config = ConfigDict(validate_by_name=True, serialize_by_alias=True)


class WhereDocument(_Document):
    """Where the two sides say something."""

    before: str | None
    """`file:line` on the first side; null where it is not known."""
    after: str | None
    """`file:line` on the second side; null where it is not known."""


class DifferenceDocument(_Document):
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


class DiffDocument(_Document):
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


def diff_document(before: str, after: str, found: Iterable[Difference]) -> DiffDocument:
    """Write differences as their document.

    Args:
        before: the first side, as it was named.
        after: the second side, as it was named.
        found: in order.
    """
    told = tuple(map(_difference, found))
    counts = Counter(each.kind for each in told)
    return DiffDocument(
        schema_="backend-caps/diff@1",
        before=before,
        after=after,
        counts={kind.value: counts[kind] for kind in DifferenceKind if kind in counts},
        differences=told,
    )


def _difference(found: Difference) -> DifferenceDocument:
    return DifferenceDocument(
        kind=found.kind,
        subject=found.subject,
        field=found.field,
        before=found.before,
        after=found.after,
        where=WhereDocument(before=found.where[0], after=found.where[1]),
    )
