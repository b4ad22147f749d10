"""Joins and comparisons of values of an interpreted program, some of which are not known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from backend_caps.engines.source.values import (
    CONTAINERS,
    EXACT,
    PLAIN,
    SIMPLE,
    ClassValue,
    External,
    FunctionValue,
    Instance,
    Native,
    Options,
    Perhaps,
    Unknown,
)

_MOST_OPTIONS = 6
"""As many values are followed side by side."""
_SHOWN = 60
"""Letters of a value that a message shows."""


def joined(one: Native, other: Native) -> Native:
    """Return the value that is one of two; unknown where they differ."""
    one, other = (each.value if isinstance(each, Perhaps) else each for each in (one, other))
    if one is other or same(one, other) is True:
        return one
    match one, other:
        case (Unknown(), _) | (_, Unknown()) if not {type(one), type(other)} & {Options}:
            return one if isinstance(one, Unknown) else other
        case dict(), dict():
            lacks = [Perhaps("it may be missing", each) for each in ({**one, **other}).values()]
            keys = zip({**one, **other}, lacks, strict=True)
            return {k: joined(one[k], other[k]) if k in one and k in other else p for k, p in keys}
        case (list(), list()) | (tuple(), tuple()) if len(one) == len(other):
            return type(one)(map(joined, one, other))
        case Instance(), Instance() if one.cls is other.cls and one.cls.is_record:
            return Instance(one.cls, joined(one.attributes, other.attributes))
    options = (*_options(one), *_options(other))
    why = " or ".join(dict.fromkeys(map(short, options)))
    if len(options) <= _MOST_OPTIONS and all(isinstance(each, SIMPLE) for each in options):
        return Options(why, tuple(dict.fromkeys(options)))
    return Unknown(why)


def merge(into: dict[Native, Native], given: Mapping[Native, Native]) -> None:
    """Update a mapping; a value that may be missing in `given` leaves the one before."""
    for key, value in given.items():
        if isinstance(value, Perhaps) and key in into:
            into[key] = joined(into[key], value.value)
        else:
            into[key] = value


def all_joined(values: Sequence[Native]) -> Native:
    """Return the value that is one of several; unknown where they differ."""
    first, *others = values
    for each in others:
        first = joined(first, each)
    return first


def _options(value: Native) -> tuple[Native, ...]:
    return value.options if isinstance(value, Options) else (value,)


def same(one: Native, other: Native) -> bool | None:
    """Return whether two values are equal; None where that is not known."""
    if type(one) in EXACT and type(other) in EXACT:
        return bool(one == other)
    if isinstance(one, Options):
        truths = {same(each, other) for each in one.options}
        return truths.pop() if len(truths) == 1 else None
    if isinstance(other, Options):
        return same(other, one)
    if has_unknown(one) or has_unknown(other):
        return None
    if isinstance(one, External) and isinstance(other, External):
        return one.path == other.path or None
    if isinstance(one, External) or isinstance(other, External):
        simple = (*PLAIN, *CONTAINERS, Instance, ClassValue, FunctionValue)
        return False if isinstance(one, simple) or isinstance(other, simple) else None
    return bool(one == other)


def either(truths: Sequence[bool | None]) -> bool | None:
    """Return whether one of these is true; None where that is not known."""
    if any(each is True for each in truths):
        return True
    return None if any(each is None for each in truths) else False


def may_have_more(value: Native) -> bool:
    """Return whether a container may have elements that are not known, or lack some."""
    if not isinstance(value, CONTAINERS):
        return False
    return Perhaps in map(type, value)


def values_of(value: Native) -> Sequence[Native]:
    """List the elements of a container; of a mapping, the values."""
    return [*(value.values() if isinstance(value, dict) else value)]


def has_unknown(value: Native, depth: int = 3) -> bool:
    """Return whether a value is unknown, or holds one that is."""
    if isinstance(value, Unknown):
        return True
    if not depth or not isinstance(value, CONTAINERS):
        return False
    parts = [*value.keys(), *value.values()] if isinstance(value, dict) else value
    return any(has_unknown(each, depth - 1) for each in parts)


def is_open(value: Native, depth: int = 2) -> bool:
    """Return whether a value is unknown or external, or holds one that is."""
    if isinstance(value, Unknown | External):
        return True
    if not depth or not isinstance(value, CONTAINERS):
        return False
    return any(is_open(each, depth - 1) for each in (*value, *values_of(value)))


def short(value: Native) -> str:
    """Write a value for a message."""
    text = f"{type(value).__name__} {getattr(value, 'name', '')}".strip()
    if isinstance(value, (*PLAIN, Unknown, External, Instance)):
        text = repr(value) if isinstance(value, PLAIN) else str(value)
    elif isinstance(value, list | tuple):
        text = f"[{', '.join(map(short, value))}]"
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."
