"""The values of a document in the words that people read."""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import JsonValue

from backend_caps.report.documents import CauseDocument, ValueDocument


def words_of(value: JsonValue) -> str:
    """Write a capability's value."""
    match value:
        case None:
            return "no limit"
        case bool():
            return "yes" if value else "no"
        case list():
            return ", ".join(map(words_of, value)) or "none"
        case dict():
            return "; ".join(f"{_SIZES[key]}{words_of(inner)}" for key, inner in value.items())
    return str(value)


_SIZES = {
    "exact": "",
    "multiple_of": "multiples of ",
    "one_of": "one of ",
    "unchecked": "not checked; within ",
    "conflict": "conflict: ",
}


def place_of(cause: CauseDocument) -> str:
    """Write where a cause stands: role and phase, and the rank if there are several."""
    rank = None if cause.rank is None else f"rank {cause.rank}"
    return " ".join(part for part in (cause.role, cause.phase, rank) if part)


def decided_by(value: ValueDocument) -> str:
    """Name who holds a value where it is, each once, with the places."""
    deciding = [cause for cause in value.causes if cause.value == value.value] or value.causes
    places: dict[str, list[str]] = {}
    for cause in deciding:
        named = places.setdefault(f"{cause.kind} {cause.name}", [])
        named.append(place_of(cause))
    return "; ".join(_with_places(name, where) for name, where in places.items()) or "nobody"


def _with_places(name: str, places: Iterable[str]) -> str:
    told = ", ".join(dict.fromkeys(place for place in places if place))
    return f"{name} ({told})" if told else name
