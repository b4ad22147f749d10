"""The values of a document in the words that people read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Sequence
from typing import TypeVar

from pydantic import JsonValue

from backend_caps.capability.provenance import Origin
from backend_caps.report.plans import CauseDocument, FlipDocument, ValueDocument

_Key = TypeVar("_Key", bound=Hashable)
_Item = TypeVar("_Item")
_SHOWN = 8
"""As many values of a list are written out."""
_SIZES = {
    "exact": "",
    "multiple_of": "multiples of ",
    "one_of": "one of ",
    "unchecked": "not checked; within ",
    "conflict": "conflict: ",
}


def grouped(pairs: Iterable[tuple[_Key, _Item]]) -> dict[_Key, list[_Item]]:
    """Collect the items of each key, in the order in which the keys come."""
    groups: dict[_Key, list[_Item]] = {}
    for key, item in pairs:
        groups.setdefault(key, []).append(item)
    return groups


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


def plain_words(value: JsonValue) -> str:
    """Write an argument of an engine; of one with parts, what differs from nothing."""
    match value:
        case None:
            return "not given"
        case {"unknown": str(why)}:
            return f"not known ({why})"
        case dict():
            held = {key: each for key, each in value.items() if each not in (None, [], {})}
            return ", ".join(f"{key} {plain_words(each)}" for key, each in held.items())
        case list() if len(value) > _SHOWN:
            return f"{len(value)} values up to {value[-1]}"
    return words_of(value)


def number_words(value: float) -> str:
    """Write a number; a mean with up to two decimals."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def counted(number: float, one: str, several: str | None = None) -> str:
    """Write a number with what it counts."""
    return f"{number_words(number)} {one if number == 1 else several or f'{one}s'}"


def place_of(cause: CauseDocument) -> str:
    """Write a cause's role and phase, and its rank if there are several."""
    rank = None if cause.rank is None else f"rank {cause.rank}"
    return " ".join(part for part in (cause.role, cause.phase, rank) if part)


def value_words(value: ValueDocument) -> str:
    """Write a plan's value."""
    return words_of(value.value) if value.is_known else "not known"


def cause_words(cause: CauseDocument) -> str:
    """Write a cause's value, and how it came to be."""
    is_known = cause.origin != Origin.NOT_KNOWN.value
    return f"{words_of(cause.value)} ({cause.origin})" if is_known else "not known"


def use_words(value: ValueDocument) -> str:
    """Write a phase's value, which counts only where a backend is used."""
    return value_words(value) if value.causes else "not used"


def deciding(value: ValueDocument) -> list[CauseDocument]:
    """List the causes whose value is the joined value."""
    return [cause for cause in value.causes if value.is_decided_by(cause)]


def decided_by(value: ValueDocument) -> str:
    """Name the causes that decide a value; with their uses, where only some decide."""
    num_by_name = Counter(map(full_name, value.causes))
    by_name = grouped((full_name(c), c) for c in deciding(value) or value.causes)
    texts = (
        name if len(causes) == num_by_name[name] else f"{name} ({places_of(causes)})"
        for name, causes in by_name.items()
    )
    return "; ".join(texts) or "nothing"


def full_name(cause: CauseDocument) -> str:
    """Write a cause's kind and name; for a composite's part, its composites too."""
    return f"{cause.kind} {name_of(cause)}"


def name_of(cause: CauseDocument) -> str:
    """Write a cause's name without its kind."""
    return " of ".join([cause.name, *reversed(cause.via or ())])


def places_of(causes: Iterable[CauseDocument]) -> str:
    """Write the places of causes, each once."""
    return ", ".join(dict.fromkeys(place for cause in causes if (place := place_of(cause))))


def file_of(place: str) -> str:
    """Shorten `/a/long/path/file.py:3` to file and line; a document has the whole path."""
    head, separator, path = place.rpartition(", ")
    return head + separator + path.replace("\\", "/").rsplit("/", 1)[-1]


def tries(flips: Iterable[FlipDocument]) -> Collection[Sequence[FlipDocument]]:
    """Group flips that differ in nothing but their phase."""
    return grouped(
        ((flip.capability, words_of(flip.value), words_of(flip.becomes), *flip.remedies), flip)
        for flip in flips
    ).values()
