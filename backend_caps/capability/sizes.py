"""Sets of sizes, closed under intersection: page sizes, head sizes.

Grammar of a declared set: `Exact(64)`, `MultipleOf(16)`, `OneOf({32, 64})`, `ANY`.
A joined set may also be `Unchecked` (somebody did not say) or `Conflict` (nothing is left).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Annotated

from pydantic import ConfigDict, Field, StrictInt
from pydantic_core import PydanticCustomError

from backend_caps.capability.scale import ANY, STATES, Anything, Undeclared
from backend_caps.capability.sets import STORED_AS_SET

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

    one_of: Annotated[
        AbstractSet[Size],
        Field(min_length=1),
        *STORED_AS_SET,
    ]
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
    """Tell how some values are written as a set of sizes, or how any are."""
    sizes = sorted({value for value in values if type(value) is int})
    if len(sizes) != len(values) or not sizes:
        meant = "Exact(n), MultipleOf(n), OneOf({n, m}) or ANY"
    elif len(sizes) == 1:
        meant = f"Exact({sizes[0]}), or MultipleOf({sizes[0]}) for all its multiples"
    else:
        meant = f"OneOf({{{', '.join(map(str, sizes))}}})"
    return PydanticCustomError("sizes", f"Input should be {meant}")


@dataclass(frozen=True, slots=True)
class Unchecked:
    """Somebody did not say: at most `within`, and possibly nothing of it."""

    within: Sizes = ANY

    def __str__(self) -> str:
        return f"not checked (within {text_of_sizes(self.within)})"


@dataclass(frozen=True, slots=True)
class Conflict:
    """No size serves every use. `owners` names whose demands exclude each other."""

    owners: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "conflict: " + " against ".join(self.owners) if self.owners else "conflict"


JoinedSizes = Sizes | Unchecked | Conflict


def text_of_sizes(sizes: JoinedSizes) -> str:
    """Write a set of sizes as people read it."""
    return "any" if sizes is ANY else str(sizes)


def admits(sizes: Sizes, size: int) -> bool:
    """Tell whether `size` is in the set."""
    return isinstance(sizes, Anything) or size in sizes


def intersect(one: JoinedSizes, other: JoinedSizes) -> JoinedSizes:
    """Join two sets to what they share; nothing shared is a `Conflict`, which stays one."""
    if isinstance(one, Conflict) or isinstance(other, Conflict):
        return Conflict()
    shared = _shared(_within(one), _within(other))
    if isinstance(shared, Conflict):
        return shared
    unchecked = isinstance(one, Unchecked) or isinstance(other, Unchecked)
    return Unchecked(shared) if unchecked else shared


def _within(sizes: Sizes | Unchecked) -> Sizes:
    return sizes.within if isinstance(sizes, Unchecked) else sizes


def _shared(one: Sizes, other: Sizes) -> Sizes | Conflict:
    if isinstance(one, Anything):
        return _normal(other)
    if isinstance(other, Anything):
        return _normal(one)
    if isinstance(one, MultipleOf) and isinstance(other, MultipleOf):
        return MultipleOf(math.lcm(one.multiple_of, other.multiple_of))
    listed, rest = (other, one) if isinstance(one, MultipleOf) else (one, other)
    assert not isinstance(listed, MultipleOf)
    return _from_listed(frozenset(size for size in _listed(listed) if admits(rest, size)))


def _listed(sizes: Exact | OneOf) -> AbstractSet[int]:
    return frozenset({sizes.exact}) if isinstance(sizes, Exact) else sizes.one_of


def _normal(sizes: Sizes) -> Sizes:
    if isinstance(sizes, OneOf) and len(sizes.one_of) == 1:
        return Exact(*sizes.one_of)
    return sizes


def _from_listed(sizes: frozenset[int]) -> Sizes | Conflict:
    if not sizes:
        return Conflict()
    return Exact(*sizes) if len(sizes) == 1 else OneOf(sizes)
