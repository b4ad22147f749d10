"""What differs between two sides: backends, their capabilities, releases, rules and plans.

A capability is stricter where the join with what it was is what it is now: the engine must do
more, or may do less. Where a statement stands in a file is shown and never compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

from backend_caps.capability.kind import Kind, Scope
from backend_caps.capability.sizes import Conflict, Unchecked
from backend_caps.capability.status import Status
from backend_caps.capability.vocabulary import CAPABILITIES
from backend_caps.report.difference import (
    NOWHERE,
    DifferenceDocument,
    DifferenceKind,
    WhereDocument,
    in_order,
)
from backend_caps.report.snapshot import BackendState, CapabilityState, PlanValue, Snapshot

_Backends = Mapping[str, BackendState]
_T = TypeVar("_T")
_CHANGED = DifferenceKind.CHANGED


def differences(before: Snapshot, after: Snapshot) -> tuple[DifferenceDocument, ...]:
    """List what differs, the most important first."""
    return in_order(
        (
            *_of_backends(before.backends, after.backends),
            *_of_releases(before.releases, after.releases),
            *_of_rules(before, after),
            *_of_problems("environment", before.problems, after.problems),
            *_of_requests(before, after),
            *_of_plans(before, after),
        )
    )


def _of_releases(
    before: Mapping[str, str], after: Mapping[str, str]
) -> Iterator[DifferenceDocument]:
    """Compare versions of what both sides have; what only one has, its backends show."""
    for name in sorted(before.keys() & after.keys()):
        yield from _of_texts(f"release {name}", "version", before[name], after[name])


def _of_rules(before: Snapshot, after: Snapshot) -> Iterator[DifferenceDocument]:
    if before.rules is None or after.rules is None:
        return
    for name, one, other in _paired(before.rules, after.rules):
        yield from _of_texts(f"rule {name}", "", one, other)
    one, other = (", ".join(side.relays) or "none" for side in (before, after))
    yield from _of_texts("rules", "overlapped algorithms", one, other)


def _of_requests(before: Snapshot, after: Snapshot) -> Iterator[DifferenceDocument]:
    if before.request is None or after.request is None:
        return
    for name, one, other in _paired(before.request, after.request):
        if one != other:
            yield _difference(_CHANGED, "request", name, one, other)


def _of_plans(before: Snapshot, after: Snapshot) -> Iterator[DifferenceDocument]:
    if before.plan is None or after.plan is None:
        if before.request is not None and after.request is not None:
            one, other = ("made" if each.plan is not None else None for each in (before, after))
            yield from _of_texts("plan", "", one, other)
        return
    for place, name in sorted(before.plan.keys() & after.plan.keys()):
        subject = "plan" if place == "server" else f"plan {place}"
        yield from _of_plan_value(subject, name, before.plan[place, name], after.plan[place, name])


def _of_plan_value(
    subject: str, name: str, one: PlanValue, other: PlanValue
) -> Iterator[DifferenceDocument]:
    """Compare a value, then what keeps it from being better, then what it does."""
    kind = severity(name, one.value, other.value)
    is_held = one.value != CAPABILITIES[name].best
    if kind is not None:
        yield _difference(kind, subject, name, one.words, other.words)
    elif is_held and one.words != other.words:
        yield _difference(_CHANGED, subject, name, one.words, other.words)
    elif one.effect != other.effect:
        yield _difference(_CHANGED, subject, name, one.effect, other.effect)


def _of_backends(before: _Backends, after: _Backends) -> Iterator[DifferenceDocument]:
    """Compare backends by name.

    An attribute that no class has on one side is one difference, and not one for each class.
    """
    were, are = _attributes(before, after), _attributes(after, before)
    for name in were.keys() ^ are.keys():
        yield from _of_texts(f"attribute {name}", "", were.get(name), are.get(name))
    for name, one, other in _paired(before, after):
        is_class = any(side is not None and side.is_class for side in (one, other))
        subject = f"{'class' if is_class else 'backend'} {name}"
        if one is not None and other is not None:
            yield from _of_backend(subject, one, other, were.keys() & are.keys())
        else:
            was, is_ = (None if side is None else _notable(side) for side in (one, other))
            yield from _of_texts(subject, "", was, is_, _where(one, other))


def _where(one: object, other: object) -> WhereDocument:
    """Return where two states stand, of which either may be None."""
    return WhereDocument(before=getattr(one, "where", None), after=getattr(other, "where", None))


def _notable(backend: BackendState) -> str:
    """Describe in a line a backend that only one side has."""
    parts = []
    if backend.status is not Status.OK:
        parts.append(", ".join((backend.status.value, *sorted(backend.problems))))
    if backend.registered_as:
        parts.append(f"registered as {', '.join(backend.registered_as)}")
    if backend.parts:
        parts.append(f"hands its uses to {'; '.join(backend.parts)}")
    parts += [
        f"{name}: {own.words}"
        for name, own in backend.capabilities.items()
        if own.is_stated and CAPABILITIES[name].scope is not Scope.USE
    ]
    return "; ".join(parts) or "declares nothing"


def _attributes(side: _Backends, other: _Backends) -> Mapping[str, str]:
    """List the attributes of the classes that both sides have, with the classes that set them."""
    owners: dict[str, list[str]] = {}
    for name in sorted(side.keys() & other.keys()):
        for attribute in side[name].attributes:
            owners.setdefault(attribute, []).append(name)
    return {attribute: f"set by {', '.join(names)}" for attribute, names in owners.items()}


def _of_backend(
    subject: str, one: BackendState, other: BackendState, known: Iterable[str]
) -> Iterator[DifferenceDocument]:
    """Compare two backends of one name; of attributes, those that are `known` on both sides."""
    where = _where(one, other)
    if one.status is not other.status:
        kind = _kind_of_status(one.status, other.status)
        yield _difference(
            kind, subject, "status", one.status.value, other.status.value, where=where
        )
    for field, was, is_ in (
        ("distribution", one.distribution, other.distribution),
        ("implementation", one.implementation, other.implementation),
        ("composite", one.composite, other.composite),
        ("parts", _parts_beside(one, other), _parts_beside(other, one)),
    ):
        if was != is_:
            yield _difference(_CHANGED, subject, field, was, is_, where)
    for field, before, after in (
        ("adapter for {}", one.adapters, other.adapters),
        ("tolerance in {}", one.tolerances, other.tolerances),
        ("registered as", _by_name(one.registered_as), _by_name(other.registered_as)),
        ("further claim", _by_name(one.others), _by_name(other.others)),
    ):
        for name, text, text_after in _paired(before, after):
            yield from _of_texts(subject, field.format(name), text, text_after, where)
    yield from _of_problems(subject, one.problems, other.problems, where)
    for name in sorted(known):
        own, own_after = one.attributes.get(name), other.attributes.get(name)
        was, is_ = (None if state is None else state.words for state in (own, own_after))
        if was != is_:
            yield _difference(_CHANGED, subject, name, was, is_, _where(own, own_after))
    for name in one.capabilities.keys() & other.capabilities.keys():
        yield from _of_capability(subject, name, one.capabilities[name], other.capabilities[name])


def _kind_of_status(before: Status, after: Status) -> DifferenceKind:
    """Return which way a status changed: what cannot be read counts as the worst."""
    if after is Status.OK:
        return DifferenceKind.LOOSER
    return DifferenceKind.STRICTER if before is Status.OK else _CHANGED


def _parts_beside(own: BackendState, other: BackendState) -> str | None:
    """Return the parts that only one of two backends has; None where there are none."""
    return "; ".join(sorted(set(own.parts) - set(other.parts))) or None


def _by_name(names: Iterable[str]) -> Mapping[str, str]:
    return {name: name for name in names}


def _of_problems(
    subject: str,
    before: Mapping[str, int],
    after: Mapping[str, int],
    where: WhereDocument = NOWHERE,
) -> Iterator[DifferenceDocument]:
    """Compare how many problems of each code there are."""
    for code, one, other in _paired(before, after):
        yield from _of_texts(subject, "problem", _times(code, one), _times(code, other), where)


def _times(code: str, count: int | None) -> str | None:
    if count is None:
        return None
    return code if count == 1 else f"{code} ({count} times)"


def _of_capability(
    subject: str, name: str, one: CapabilityState, other: CapabilityState
) -> Iterator[DifferenceDocument]:
    """Compare a value with its origin, and by itself what it depends on."""
    where = _where(one, other)
    was, is_ = bool(one.conditions), bool(other.conditions)
    kind = severity(name, one.value, other.value)
    is_same = (one.origin, one.base) == (other.origin, other.base)
    if kind is None and was is is_ and not is_same:
        kind = _CHANGED
    if kind is not None:
        yield _difference(kind, subject, name, one.words, other.words, where)
    if one.conditions != other.conditions:
        kind = _CHANGED
        if was is not is_:
            kind = DifferenceKind.BECAME_CONDITIONAL if is_ else DifferenceKind.BECAME_UNCONDITIONAL
        before, after = ("; ".join(side.conditions) or side.words for side in (one, other))
        yield _difference(kind, subject, name, before, after, where)


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
        return _CHANGED
    kind = CAPABILITIES[capability]
    was, is_ = _granted(kind, before), _granted(kind, after)
    if was != is_:
        return DifferenceKind.STRICTER if is_ < was else DifferenceKind.LOOSER
    joined = kind.join(before, after)
    if joined == after:
        return DifferenceKind.STRICTER
    return DifferenceKind.LOOSER if joined == before else _CHANGED


def _granted(kind: Kind, value: object) -> int:
    """Rank a value by what it grants at all: sizes that no check has seen may grant nothing."""
    if isinstance(value, Conflict):
        return 0
    if isinstance(value, Unchecked):
        return 1 if value == kind.worst else 2
    return 3


def _paired(
    before: Mapping[str, _T], after: Mapping[str, _T]
) -> Iterator[tuple[str, _T | None, _T | None]]:
    """Put together what has one name on both sides, sorted; None where it is not there."""
    for name in sorted({*before, *after}):
        yield name, before.get(name), after.get(name)


def _of_texts(
    subject: str,
    field: str,
    before: str | None,
    after: str | None,
    where: WhereDocument = NOWHERE,
) -> Iterator[DifferenceDocument]:
    """Compare two texts, either of which may not be there."""
    if before == after:
        return
    kind = _CHANGED
    if before is None:
        kind = DifferenceKind.APPEARED
    elif after is None:
        kind = DifferenceKind.VANISHED
    yield _difference(kind, subject, field, before, after, where)


def _difference(
    kind: DifferenceKind,
    subject: str,
    field: str,
    before: str | None,
    after: str | None,
    where: WhereDocument = NOWHERE,
) -> DifferenceDocument:
    return DifferenceDocument(
        kind=kind, subject=subject, field=field, before=before, after=after, where=where
    )
