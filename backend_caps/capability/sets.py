"""Sets in declarations: of names, of sizes, and windows of compute capabilities.

They are checked, frozen, and written in a stable order. Windows and sizes are closed under
intersection. Grammar of sizes: `Exact(64)`, `MultipleOf(16)`, `OneOf({32, 64})`, `ANY`; joined ones
may also be `Unchecked` (a use declares none) or `Conflict` (no size is left).

The validators are Python functions, because pydantic inspects the signature of each: that of one
in C is parsed out of its help text, which takes a tenth of the time of building a model.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, TypeVar

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, PlainSerializer, StrictInt
from pydantic_core import PydanticCustomError

from backend_caps.capability.kind import ANY, STATES, Anything, Undeclared


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
    """Sort a set, whose own order follows PYTHONHASHSEED; a state is returned as it is."""
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
_Member = TypeVar("_Member")
SomeOf = Annotated[AbstractSet[_Member], Field(min_length=1), *STORED_AS_SET]
"""The annotation of a field that holds a set of one or more."""
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


SomeWindows = Annotated[ComputeCapabilities, BeforeValidator(written_windows)]
"""The annotation of a field that holds windows, any of which is enough."""
Windows = tuple[ComputeRange, ...] | Anything


def overlap(one: Windows, other: Windows) -> Windows:
    """Join two lists of windows to what they share, as windows in order that do not touch."""
    if isinstance(one, Anything) or isinstance(other, Anything):
        rest = other if isinstance(one, Anything) else one
        return rest if isinstance(rest, Anything) else _merged(rest)
    return _merged(
        _window(max(mine.at_least, theirs.at_least), min(_end(mine), _end(theirs)))
        for mine in one
        for theirs in other
    )


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


Size = Annotated[StrictInt, Field(ge=1)]


@dataclass(frozen=True, slots=True)
class Exact:
    """One size."""

    __pydantic_config__ = ConfigDict(extra="forbid", revalidate_instances="always")

    exact: Size
    """The size."""

    def __contains__(self, size: object) -> bool:
        return size == self.exact

    def __str__(self) -> str:
        return str(self.exact)


@dataclass(frozen=True, slots=True)
class MultipleOf:
    """Every multiple of a size."""

    __pydantic_config__ = ConfigDict(extra="forbid", revalidate_instances="always")

    multiple_of: Size
    """The size whose multiples are taken."""

    def __contains__(self, size: object) -> bool:
        return isinstance(size, int) and size % self.multiple_of == 0

    def __str__(self) -> str:
        return f"multiples of {self.multiple_of}"


@dataclass(frozen=True, slots=True)
class OneOf:
    """A few sizes."""

    __pydantic_config__ = ConfigDict(extra="forbid", revalidate_instances="always")

    one_of: SomeOf[Size]
    """The sizes."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "one_of", frozenset(self.one_of))

    def __contains__(self, size: object) -> bool:
        return size in self.one_of

    def __str__(self) -> str:
        return "one of " + ", ".join(map(str, sorted(self.one_of)))


Sizes = Exact | MultipleOf | OneOf | Anything


def written_sizes(value: object) -> object:
    """Refuse what is no size set, such as a number.

    Raises:
        PydanticCustomError: with the sizes to write.
    """
    match value:
        case Exact() | MultipleOf() | OneOf() | Mapping() | None:
            return value
        case Anything() | Undeclared() | str() if value in STATES:
            return value
        case set() | frozenset() | list() | tuple():
            raise _misshapen(*value)
    raise _misshapen(value)


def _misshapen(*values: object) -> PydanticCustomError:
    """Return the error for values that are no set of sizes, with the spelling."""
    sizes = sorted({value for value in values if type(value) is int})
    if len(sizes) != len(values) or not sizes:
        meant = "Exact(n), MultipleOf(n), OneOf({n, m}) or ANY"
    elif len(sizes) == 1:
        meant = f"Exact({sizes[0]}), or MultipleOf({sizes[0]}) for all its multiples"
    else:
        meant = f"OneOf({{{', '.join(map(str, sizes))}}})"
    return PydanticCustomError("sizes", f"Input should be {meant}")


def pages_of(blocks: object) -> object:
    """Return the pages that split into a kernel's blocks: the multiples of any of them.

    What is no set of sizes, such as a conflict, is returned as it is.
    """
    match blocks:
        case Exact(base) | MultipleOf(base):
            return (MultipleOf(base),)
        case OneOf(sizes):
            least = (s for s in sizes if not any(s % other == 0 for other in sizes - {s}))
            return tuple(map(MultipleOf, sorted(least)))
    return blocks


@dataclass(frozen=True, slots=True)
class Unchecked:
    """A use did not declare its sizes: at most `within`, and possibly none of it."""

    within: Sizes = ANY

    def __str__(self) -> str:
        return f"not checked (within {self.within})"


@dataclass(frozen=True, slots=True)
class Conflict:
    """No size serves every use. `owners` names the causes that exclude each other."""

    owners: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "conflict: " + " against ".join(self.owners) if self.owners else "conflict"


JoinedSizes = Sizes | Unchecked | Conflict


def intersect(one: JoinedSizes, other: JoinedSizes) -> JoinedSizes:
    """Join two sets to what they share; nothing shared is a `Conflict`, which stays one."""
    if isinstance(one, Conflict) or isinstance(other, Conflict):
        return Conflict()
    mine, theirs = (each.within if isinstance(each, Unchecked) else each for each in (one, other))
    shared, is_checked = _shared(mine, theirs), (mine, theirs) == (one, other)
    return shared if is_checked or isinstance(shared, Conflict) else Unchecked(shared)


def _shared(one: Sizes, other: Sizes) -> Sizes | Conflict:
    if isinstance(one, MultipleOf) and isinstance(other, MultipleOf):
        return MultipleOf(math.lcm(one.multiple_of, other.multiple_of))
    listed, rest = (one, other) if isinstance(one, Exact | OneOf) else (other, one)
    if not isinstance(listed, Exact | OneOf):  # one of the two takes every size
        return rest if isinstance(listed, Anything) else listed
    sizes = {listed.exact} if isinstance(listed, Exact) else listed.one_of
    shared = frozenset(size for size in sizes if size in rest)
    if len(shared) > 1:
        return OneOf(shared)
    return Exact(*shared) if shared else Conflict()
