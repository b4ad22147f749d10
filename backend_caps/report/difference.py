"""One thing that differs between two sides, and how it is told from either."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

Where = tuple[str | None, str | None]
"""`file:line` on the one side and on the other, where it is known."""
NOWHERE: Where = (None, None)
"""Of what stands in no file."""
_T = TypeVar("_T")


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

    @property
    def mirrored(self) -> DifferenceKind:
        """What it is from the other side."""
        return _MIRRORED.get(self, self)


_MIRRORED = {
    DifferenceKind.STRICTER: DifferenceKind.LOOSER,
    DifferenceKind.LOOSER: DifferenceKind.STRICTER,
    DifferenceKind.APPEARED: DifferenceKind.VANISHED,
    DifferenceKind.VANISHED: DifferenceKind.APPEARED,
    DifferenceKind.BECAME_CONDITIONAL: DifferenceKind.BECAME_UNCONDITIONAL,
    DifferenceKind.BECAME_UNCONDITIONAL: DifferenceKind.BECAME_CONDITIONAL,
}
_ORDER = {kind: at for at, kind in enumerate(DifferenceKind)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One thing that is not the same on both sides."""

    kind: DifferenceKind
    subject: str
    """What it is about, such as `backend fa3`, `rule ngram` or `plan`."""
    field: str
    """The capability, or what else of the subject; empty for the whole of it."""
    before: str | None
    """What it was, in words; None where it was not there."""
    after: str | None
    """What it is, in words; None where it is not there."""
    where: Where = NOWHERE
    """Where the two sides say so."""

    def mirrored(self) -> Difference:
        """Tell the same from the other side."""
        return Difference(
            kind=self.kind.mirrored,
            subject=self.subject,
            field=self.field,
            before=self.after,
            after=self.before,
            where=(self.where[1], self.where[0]),
        )

    @property
    def sort_key(self) -> tuple[int, bool, str, str, str, str]:
        """Order differences by importance, a plan's first, then by what they are about."""
        told = (self.subject, self.field, self.before or "", self.after or "")
        return (_ORDER[self.kind], not self.subject.startswith("plan"), *told)


def mirrored(found: Iterable[Difference]) -> tuple[Difference, ...]:
    """Tell the same differences from the other side."""
    return in_order(difference.mirrored() for difference in found)


def in_order(found: Iterable[Difference]) -> tuple[Difference, ...]:
    """Sort differences, the most important first."""
    return tuple(sorted(found, key=lambda difference: difference.sort_key))


def paired(
    before: Mapping[str, _T], after: Mapping[str, _T]
) -> Iterator[tuple[str, _T | None, _T | None]]:
    """Put together what has one name on both sides, sorted; None where it is not there."""
    for name in sorted({*before, *after}):
        yield name, before.get(name), after.get(name)


def of_texts(
    subject: str, field: str, before: str | None, after: str | None, where: Where = NOWHERE
) -> Iterator[Difference]:
    """Compare two texts, either of which may not be there."""
    if before == after:
        return
    kind = DifferenceKind.CHANGED
    if before is None:
        kind = DifferenceKind.APPEARED
    elif after is None:
        kind = DifferenceKind.VANISHED
    yield Difference(
        kind=kind, subject=subject, field=field, before=before, after=after, where=where
    )


def changed(
    subject: str, field: str, before: str | None, after: str | None, where: Where = NOWHERE
) -> Difference:
    """Tell of two texts that differ, and neither way is stricter."""
    return Difference(
        kind=DifferenceKind.CHANGED,
        subject=subject,
        field=field,
        before=before,
        after=after,
        where=where,
    )
