"""What differs between the backends of two sides: what is there, and what each says."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from backend_caps.capability.kind import Kind, Scope
from backend_caps.capability.sizes import Conflict, Unchecked
from backend_caps.capability.status import Status
from backend_caps.capability.vocabulary import CAPABILITIES
from backend_caps.report.difference import (
    NOWHERE,
    Difference,
    DifferenceKind,
    Where,
    changed,
    of_texts,
    paired,
)
from backend_caps.report.snapshot import AttributeState, BackendState, CapabilityState

Backends = Mapping[str, BackendState]


def of_backends(before: Backends, after: Backends) -> Iterator[Difference]:
    """Compare backends by name.

    An attribute that no class has on one side is one difference, and not one for each class.
    """
    were, are = _attributes(before, after), _attributes(after, before)
    for name in were.keys() ^ are.keys():
        yield from of_texts(f"attribute {name}", "", were.get(name), are.get(name))
    for name, one, other in paired(before, after):
        is_class = any(side is not None and side.is_class for side in (one, other))
        subject = f"{'class' if is_class else 'backend'} {name}"
        if one is not None and other is not None:
            yield from _of_backend(subject, one, other, were.keys() & are.keys())
        else:
            (was, there), (is_, here) = _whole(one), _whole(other)
            yield from of_texts(subject, "", was, is_, (there, here))


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


def _attributes(side: Backends, other: Backends) -> Mapping[str, str]:
    """List the attributes of the classes that both sides have, with the classes that set them."""
    owners: dict[str, list[str]] = {}
    for name in sorted(side.keys() & other.keys()):
        for attribute in side[name].attributes:
            owners.setdefault(attribute, []).append(name)
    return {attribute: f"set by {', '.join(names)}" for attribute, names in owners.items()}


def _of_backend(
    subject: str, one: BackendState, other: BackendState, known: Iterable[str]
) -> Iterator[Difference]:
    """Compare two backends of one name; of attributes, those that are `known` on both sides."""
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
            yield changed(subject, field, was, is_, where)
    yield from _of_each(subject, "adapter for", one.adapters, other.adapters, where)
    yield from _of_each(subject, "tolerance in", one.tolerances, other.tolerances, where)
    yield from _of_names(subject, "registered as", one.registered_as, other.registered_as, where)
    yield from _of_names(subject, "further claim", one.others, other.others, where)
    yield from _of_parts(subject, one.parts, other.parts, where)
    yield from of_problems(subject, one.problems, other.problems, where)
    for name in sorted(known):
        said, says = one.attributes.get(name), other.attributes.get(name)
        (was, there), (is_, here) = _attribute(said), _attribute(says)
        if was != is_:
            yield changed(subject, name, was, is_, (there, here))
    for name in one.capabilities.keys() & other.capabilities.keys():
        yield from _of_capability(subject, name, one.capabilities[name], other.capabilities[name])


def _attribute(said: AttributeState | None) -> tuple[str | None, str | None]:
    return (None, None) if said is None else (said.words, said.where)


def _kind_of_status(before: Status, after: Status) -> DifferenceKind:
    """Tell which way a status changed: what cannot be read counts as the worst."""
    if after is Status.OK:
        return DifferenceKind.LOOSER
    return DifferenceKind.STRICTER if before is Status.OK else DifferenceKind.CHANGED


def _of_parts(
    subject: str, before: Iterable[str], after: Iterable[str], where: Where
) -> Iterator[Difference]:
    """Tell the parts that only one side has."""
    gone, new = set(before) - set(after), set(after) - set(before)
    if gone or new:
        told = ("; ".join(sorted(gone)) or None, "; ".join(sorted(new)) or None)
        yield changed(subject, "parts", *told, where)


def _of_each(
    subject: str, field: str, before: Mapping[str, str], after: Mapping[str, str], where: Where
) -> Iterator[Difference]:
    """Compare what is said of each of several names."""
    for name, one, other in paired(before, after):
        yield from of_texts(subject, f"{field} {name}", one, other, where)


def _of_names(
    subject: str, field: str, before: Iterable[str], after: Iterable[str], where: Where
) -> Iterator[Difference]:
    was, is_ = {name: name for name in before}, {name: name for name in after}
    for _, one, other in paired(was, is_):
        yield from of_texts(subject, field, one, other, where)


def of_problems(
    subject: str, before: Mapping[str, int], after: Mapping[str, int], where: Where = NOWHERE
) -> Iterator[Difference]:
    """Compare how many problems of each code there are."""
    for code, one, other in paired(before, after):
        was, is_ = _times(code, one), _times(code, other)
        yield from of_texts(subject, "problem", was, is_, where)


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
    is_same = (one.origin, one.base) == (other.origin, other.base)
    if kind is None and was is is_ and not is_same:
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
