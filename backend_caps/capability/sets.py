"""Sets and lists that declarations state, and windows of CUDA compute capabilities.

They are checked, frozen, and written in a stable order.

The validators are functions of ours: pydantic asks each for its signature, and that of a class or
function written in C is parsed out of its help text, a tenth of what building a model takes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import Enum
from typing import Annotated

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    StrictInt,
)
from pydantic_core import PydanticCustomError

from backend_caps.capability.scale import STATES, Anything, Undeclared


def several(value: object) -> object:
    """Refuse one name where a set of them is expected.

    Raises:
        PydanticCustomError: with the set to write.
    """
    if isinstance(value, str | Enum) and value not in STATES:
        written = repr(value) if isinstance(value, str) else str(value)
        raise PydanticCustomError("one_of_set", f"Input should be a set: {{{written}}}")
    return value


def _frozen(values: object) -> object:
    return frozenset(values) if isinstance(values, AbstractSet) else values


def _in_order(values: Iterable[object]) -> tuple[object, ...]:
    return tuple(values)


def _written(values: object) -> object:
    """Sort a set, whose own order follows PYTHONHASHSEED; what stands for one stays."""
    if isinstance(values, frozenset):
        return sorted(map(_name, values), key=_order)
    return _name(values)


def _name(value: object) -> object:
    return value.value if isinstance(value, Enum) else value


def _order(name: object) -> tuple[int, str]:
    """Order numbers by size, and names by letter."""
    return (name if isinstance(name, int) else 0, str(name))


STORED_AS_SET = (BeforeValidator(several), AfterValidator(_frozen), PlainSerializer(_written))
"""The annotation of a field that holds a set."""
STORED_AS_TUPLE = AfterValidator(_in_order)
"""The annotation of a field that holds a list."""

Version = tuple[Annotated[StrictInt, Field(ge=0)], Annotated[StrictInt, Field(ge=0)]]


@dataclass(frozen=True, slots=True)
class ComputeRange:
    """A window of compute capabilities: from `at_least`, up to but without `below`."""

    __pydantic_config__ = ConfigDict(extra="forbid", revalidate_instances="always")

    at_least: Version
    """The first (major, minor) in it."""
    below: Version | None = None
    """The first (major, minor) above it; None where it is open."""

    def __contains__(self, version: tuple[int, int]) -> bool:
        return self.at_least <= version and (self.below is None or version < self.below)

    def __str__(self) -> str:
        start = f">= {_dotted(self.at_least)}"
        return start if self.below is None else f"{start} and < {_dotted(self.below)}"


ComputeCapabilities = Annotated[Sequence[ComputeRange], Field(min_length=1), STORED_AS_TUPLE]


def written_windows(value: object) -> object:
    """Refuse what is no list of windows, such as a version.

    Raises:
        PydanticCustomError: with the windows to write.
    """
    match value:
        case Anything() | Undeclared() | None:
            return value
        case str() if value in STATES:
            return value
        case (int(), int()):
            meant = f": [ComputeRange({value!r})]"
        case ComputeRange(at_least=at_least, below=below):
            meant = f": [ComputeRange({at_least!r}{'' if below is None else f', {below!r}'})]"
        case list() | tuple() if all(isinstance(each, ComputeRange | Mapping) for each in value):
            return value
        case _:
            meant = ", such as [ComputeRange((9, 0))]"
    raise PydanticCustomError("windows", f"Input should be windows of versions{meant}")


Windows = tuple[ComputeRange, ...] | Anything


def overlap(one: Windows, other: Windows) -> Windows:
    """Join two lists of windows to what they share, as windows in order that do not touch."""
    if isinstance(one, Anything):
        return other if isinstance(other, Anything) else _merged(other)
    if isinstance(other, Anything):
        return _merged(one)
    return _merged(_shared(mine, theirs) for mine in one for theirs in other)


def _shared(one: ComputeRange, other: ComputeRange) -> ComputeRange:
    return _window(max(one.at_least, other.at_least), min(_end(one), _end(other)))


def _merged(windows: Iterable[ComputeRange]) -> tuple[ComputeRange, ...]:
    merged: list[tuple[_Bound, _Bound]] = []
    for start, end in sorted((window.at_least, _end(window)) for window in windows):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        elif start < end:
            merged.append((start, end))
    return tuple(_window(start, end) for start, end in merged)


_Bound = tuple[int, int]
_OPEN: _Bound = (sys.maxsize, 0)


def _end(window: ComputeRange) -> _Bound:
    return _OPEN if window.below is None else window.below


def _window(start: _Bound, end: _Bound) -> ComputeRange:
    return ComputeRange(start, None if end == _OPEN else end)


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
