"""How pages write what a field can hold, and what a declaration holds."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Literal, Union, get_args, get_origin

from backend_caps.capability.facts import AtLeast
from backend_caps.capability.kind import Anything, Scale, Undeclared
from backend_caps.capability.sets import ComputeRange, Exact, MultipleOf, OneOf, Unchecked, Version
from backend_caps.capability.vocabulary import NO_LIMIT

_PLAIN: dict[object, str] = {
    Path: "a path",
    float: "seconds",
    bool: "`True`, `False`",
    int: "a number",
    str: "a name",
    NoneType: "not given",
    Anything: "`ANY`",
    AtLeast: "`AtLeast(n)`",
    Exact: "`Exact(n)`",
    MultipleOf: "`MultipleOf(n)`",
    OneOf: "`OneOf({n, …})`",
    ComputeRange: "`ComputeRange((9, 0), below=…)`",
}
_PLURALS = {"a name": "names", "a number": "numbers", "a path": "paths"}


def values_of(annotation: object) -> str:
    """Write what a field can hold."""
    options = [option for option in options_of(annotation) if option is not Undeclared]
    return " or ".join(dict.fromkeys(_option(option) for option in options))


def options_of(annotation: object) -> Iterator[object]:
    """List the members of a union, through every `Annotated` around them."""
    if get_origin(annotation) is Annotated:
        yield from options_of(get_args(annotation)[0])
    elif get_origin(annotation) in {Union, UnionType}:
        for member in get_args(annotation):
            yield from options_of(member)
    else:
        yield annotation


def _option(option: object) -> str:
    if option in _PLAIN:
        return _PLAIN[option]
    if get_origin(option) is Literal:
        return ", ".join(f"`{value}`" for value in get_args(option))
    if isinstance(option, type) and issubclass(option, Enum):
        sign = " < " if issubclass(option, Scale) else ", "
        return sign.join(f"`{member.name}`" for member in option)
    if option == Version:
        return "(major, minor)"
    kind = "a set of" if get_origin(option) is AbstractSet else "several of"
    return f"{kind} {_PLURALS.get(said := values_of(get_args(option)[0]), said)}"


def shown(value: object) -> str:
    """Write a value as it stands in a declaration."""
    match value:
        case Unchecked():
            return "not checked"
        case bool():
            return f"`{value}`"
        case int():
            return "no limit" if value == NO_LIMIT else f"`{value}`"
        case Enum():
            return f"`{value.name}`"
        case frozenset() | tuple():
            members = [member for member in value if isinstance(member, Enum)]
            members.sort(key=lambda member: list(type(member)).index(member))
            return ", ".join(f"`{member.name}`" for member in members) or "none"
    raise AssertionError(f"no capability has the extreme {value!r}")
