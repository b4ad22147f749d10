"""Which class's code gives its objects an attribute. Nothing of it runs."""

from __future__ import annotations

import dis
from collections.abc import Iterator
from functools import cached_property
from types import CodeType, FunctionType

_BY_NAME = frozenset({"setattr", "__setattr__", "__dict__", "vars"})
"""What code sets an attribute with whose name it has as text."""


def setter_of(kind: type, name: str) -> type | None:
    """Find the first class in a class's order whose own functions set an attribute.

    None is an attribute that is set on the object from outside.
    """
    setters = (each for each in kind.__mro__ if any(_sets(code, name) for code in _codes(each)))
    return next(setters, None)


def _codes(kind: type) -> Iterator[CodeType]:
    """List the code of a class's own functions, with what is in them and what they wrap."""
    pending: list[object] = list(vars(kind).values())
    seen: set[int] = set()
    while pending:
        each = pending.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        match each:
            case CodeType():
                yield each
                pending += each.co_consts
            case FunctionType():
                pending += [each.__code__, *_enclosed(each)]
            case staticmethod() | classmethod():
                pending.append(each.__func__)
            case property():
                pending += [each.fget, each.fset]
            case cached_property():
                pending.append(each.func)


def _enclosed(function: FunctionType) -> Iterator[object]:
    """List what a function closes over, such as the one that a decorator wrapped."""
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # nothing is in it yet
            continue


def _sets(code: CodeType, name: str) -> bool:
    if name in code.co_consts and not _BY_NAME.isdisjoint(code.co_names):
        return True
    return name in code.co_names and any(
        each.opname == "STORE_ATTR" and each.argval == name for each in dis.get_instructions(code)
    )
