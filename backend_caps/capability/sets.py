"""How declared sets and lists are kept: checked, frozen, and written in a stable order.

The validators are functions of ours: pydantic asks each for its signature, and that of a class or
function written in C is parsed out of its help text, a tenth of what building a model takes.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from enum import Enum

from pydantic import AfterValidator, BeforeValidator, PlainSerializer
from pydantic_core import PydanticCustomError

from backend_caps.capability.scale import STATES


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
