"""What differs between two sides: backends, what they say, releases, rules and plans.

A capability is stricter where the join with what it was is what it is now: the engine must do
more, or may do less. Where a statement stands in a file is told and never compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from backend_caps.capability.kind import Kind, Scope
from backend_caps.capability.sizes import Conflict, Unchecked
from backend_caps.capability.status import Status
from backend_caps.capability.vocabulary import CAPABILITIES
from backend_caps.report.snapshot import (
    AttributeState,
    BackendState,
    CapabilityState,
    PlanValue,
    Snapshot,
)

Where = tuple[str | None, str | None]
"""`file:line` on the one side and on the other, where it is known."""
_NOWHERE: Where = (None, None)
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
    where: Where = _NOWHERE
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
    def sort_key(self) -> tuple[int, str, str, str, str]:
        """Order differences by importance, then by what they are about."""
        told = (self.subject, self.field, self.before or "", self.after or "")
        return (_ORDER[self.kind], *told)


def differences(before: Snapshot, after: Snapshot) -> tuple[Difference, ...]:
    """List what differs, the most important first."""
    return in_order(
        (
            *_of_backends(before, after),
            *_of_releases(before.releases, after.releases),
            *_of_rules(before, after),
            *_of_problems("environment", before.problems, after.problems),
            *_of_requests(before, after),
            *_of_plans(before, after),
        )
    )


def mirrored(found: Iterable[Difference]) -> tuple[Difference, ...]:
    """Tell the same differences from the other side."""
    return in_order(difference.mirrored() for difference in found)


def in_order(found: Iterable[Difference]) -> tuple[Difference, ...]:
    """Sort differences, the most important first."""
    return tuple(sorted(found, key=lambda difference: difference.sort_key))


def _paired(
    before: Mapping[str, _T], after: Mapping[str, _T]
) -> Iterator[tuple[str, _T | None, _T | None]]:
    for name in sorted({*before, *after}):
        yield name, before.get(name), after.get(name)


def _of_texts(
    subject: str, field: str, before: str | None, after: str | None, where: Where = _NOWHERE
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


def _of_backends(before: Snapshot, after: Snapshot) -> Iterator[Difference]:
    for name, one, other in _paired(before.backends, after.backends):
        is_class = any(side is not None and side.is_class for side in (one, other))
        subject = f"{'class' if is_class else 'backend'} {name}"
        if one is not None and other is not None:
            yield from _of_backend(subject, one, other)
        else:
            (was, there), (is_, here) = _whole(one), _whole(other)
            yield from _of_texts(subject, "", was, is_, (there, here))


def _whole(backend: BackendState | None) -> tuple[str | None, str | None]:
    return (None, None) if backend is None else (_notable(backend), backend.where)


def _notable(backend: BackendState) -> str:
    """Tell in a line what a backend is that only one side has."""
    told = []
    if backend.status is not Status.OK:
        told.append(", ".join((backend.status.value, *sorted(backend.problems))))
    if backend.registered_as:
        told.append(f"registered as {', '.join(backend.registered_as)}")
    if backend.parts:
        told.append(f"hands its uses to {'; '.join(backend.parts)}")
    told += [
        f"{name}: {said.words}"
        for name, said in backend.capabilities.items()
        if said.is_stated and CAPABILITIES[name].scope is not Scope.USE
    ]
    return "; ".join(told) or "declares nothing"


def _of_backend(subject: str, one: BackendState, other: BackendState) -> Iterator[Difference]:
    where = (one.where, other.where)
    if one.status is not other.status:
        yield Difference(
            kind=_kind_of_status(one.status, other.status),
            subject=subject,
            field="status",
            before=one.status.value,
            after=other.status.value,
            where=where,
        )
    for field, was, is_ in (
        ("distribution", one.distribution, other.distribution),
        ("implementation", one.implementation, other.implementation),
        ("composite", one.composite, other.composite),
    ):
        if was != is_:
            yield _changed(subject, field, was, is_, where)
    yield from _of_names(subject, "registered as", one.registered_as, other.registered_as, where)
    yield from _of_names(subject, "further claim", one.others, other.others, where)
    yield from _of_names(subject, "part", one.parts, other.parts, where)
    yield from _of_problems(subject, one.problems, other.problems, where)
    for name, said, says in _paired(one.attributes, other.attributes):
        (was, there), (is_, here) = _attribute(said), _attribute(says)
        if was != is_:
            yield _changed(subject, name, was, is_, (there, here))
    for name in one.capabilities.keys() & other.capabilities.keys():
        yield from _of_capability(subject, name, one.capabilities[name], other.capabilities[name])


def _attribute(said: AttributeState | None) -> tuple[str | None, str | None]:
    return (None, None) if said is None else (said.words, said.where)


def _kind_of_status(before: Status, after: Status) -> DifferenceKind:
    """Tell which way a status changed: what cannot be read counts as the worst."""
    if after is Status.OK:
        return DifferenceKind.LOOSER
    return DifferenceKind.STRICTER if before is Status.OK else DifferenceKind.CHANGED


def _changed(
    subject: str, field: str, before: str | None, after: str | None, where: Where = _NOWHERE
) -> Difference:
    return Difference(
        kind=DifferenceKind.CHANGED,
        subject=subject,
        field=field,
        before=before,
        after=after,
        where=where,
    )


def _of_names(
    subject: str, field: str, before: Iterable[str], after: Iterable[str], where: Where
) -> Iterator[Difference]:
    was, is_ = {name: name for name in before}, {name: name for name in after}
    for _, one, other in _paired(was, is_):
        yield from _of_texts(subject, field, one, other, where)


def _of_problems(
    subject: str, before: Mapping[str, int], after: Mapping[str, int], where: Where = _NOWHERE
) -> Iterator[Difference]:
    for code, one, other in _paired(before, after):
        was, is_ = _times(code, one), _times(code, other)
        yield from _of_texts(subject, "problem", was, is_, where)


def _times(code: str, count: int | None) -> str | None:
    if count is None:
        return None
    return code if count == 1 else f"{code} ({count} times)"


def _of_capability(
    subject: str, name: str, one: CapabilityState, other: CapabilityState
) -> Iterator[Difference]:
    """Compare a value with its origin, and by itself what it depends on."""
    where = (one.where, other.where)
    was, is_ = bool(one.conditions), bool(other.conditions)
    kind = severity(name, one.value, other.value)
    if kind is None and one.origin is not other.origin and was is is_:
        kind = DifferenceKind.CHANGED
    if kind is not None:
        yield Difference(
            kind=kind,
            subject=subject,
            field=name,
            before=one.words,
            after=other.words,
            where=where,
        )
    if one.conditions != other.conditions:
        yield Difference(
            kind=_kind_of_conditions(was=was, is_=is_),
            subject=subject,
            field=name,
            before="; ".join(one.conditions) or one.words,
            after="; ".join(other.conditions) or other.words,
            where=where,
        )


def _kind_of_conditions(*, was: bool, is_: bool) -> DifferenceKind:
    if was is is_:
        return DifferenceKind.CHANGED
    return DifferenceKind.BECAME_CONDITIONAL if is_ else DifferenceKind.BECAME_UNCONDITIONAL


def severity(capability: str, before: object, after: object) -> DifferenceKind | None:
    """Tell which way a value changed; None where it is the same.

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
    """Rank a value by what it grants at all: sizes that nobody checked may grant nothing."""
    if isinstance(value, Conflict):
        return 0
    if isinstance(value, Unchecked):
        return 1 if value == kind.worst else 2
    return 3


def _of_releases(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[Difference]:
    """Compare the versions of what both sides have; what only one has, its backends tell."""
    for name, one, other in _paired(before, after):
        if one is not None and other is not None:
            yield from _of_texts(f"release {name}", "version", one, other)


def _of_rules(before: Snapshot, after: Snapshot) -> Iterator[Difference]:
    if before.rules is None or after.rules is None:
        return
    for name, one, other in _paired(before.rules, after.rules):
        yield from _of_texts(f"rule {name}", "", one, other)
    if before.relays != after.relays:
        told = (", ".join(before.relays) or "none", ", ".join(after.relays) or "none")
        yield _changed("rules", "overlapped algorithms", *told)


def _of_requests(before: Snapshot, after: Snapshot) -> Iterator[Difference]:
    if before.request is None or after.request is None:
        return
    for name, one, other in _paired(before.request, after.request):
        if one != other:
            yield _changed("request", name, one, other)


def _of_plans(before: Snapshot, after: Snapshot) -> Iterator[Difference]:
    if before.plan is None or after.plan is None:
        return
    for place, name in sorted(before.plan.keys() & after.plan.keys()):
        subject = "plan" if place == "server" else f"plan {place}"
        yield from _of_plan_value(subject, name, before.plan[place, name], after.plan[place, name])


def _of_plan_value(
    subject: str, name: str, one: PlanValue, other: PlanValue
) -> Iterator[Difference]:
    kind = severity(name, one.value, other.value)
    if kind is not None:
        yield Difference(
            kind=kind, subject=subject, field=name, before=one.words, after=other.words
        )
    elif one.effect != other.effect:
        yield _changed(subject, name, one.effect, other.effect)
