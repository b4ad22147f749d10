"""What one backend states of a capability, and which way a value changed."""

from __future__ import annotations

from typing import NamedTuple

from backend_caps.capability.declaration import When, declared
from backend_caps.capability.facts import text_of
from backend_caps.capability.kind import UNDECLARED, Kind
from backend_caps.capability.provenance import Origin
from backend_caps.capability.sets import Conflict, Unchecked
from backend_caps.capability.vocabulary import CAPABILITIES
from backend_caps.report.difference import DifferenceKind
from backend_caps.report.lock import LockedBackend


class Statement(NamedTuple):
    """The statement of one backend on one capability."""

    value: object
    """The join over both ways of every condition; None where a composite leaves it to its parts."""
    base: str
    """What holds where no condition does, in words."""
    origin: Origin
    """`DECLARED`, `INHERITED` or `UNDECLARED`: of what holds where no condition does."""
    conditions: tuple[str, ...]
    """What holds under conditions, in words, sorted."""
    words: str
    """The value and its origin, as people read them."""


def statement_of(own: LockedBackend, name: str) -> Statement:
    """Return what a backend states of a capability; its declaration was read."""
    declaration = own.declaration
    assert declaration is not None, "a declaration that was not read states nothing"
    reading = None if own.engine_class is None else own.engine_class.readings.get(name)
    whens = [each for each in declaration.conditions if name in each.capabilities.stated()]
    conditions = tuple(sorted(_condition(when, name) for when in whens))
    if not conditions and reading is not None and reading.origin is Origin.CONDITIONAL:
        conditions = (reading.words,)
    stated = declaration.capabilities.stated()
    base = text_of(stated.get(name, UNDECLARED))
    origin = Origin.DECLARED if name in stated else Origin.UNDECLARED
    if reading is not None and reading.origin is Origin.INHERITED:
        origin = Origin.INHERITED
    if declaration.parts and origin is Origin.UNDECLARED and not conditions:
        return Statement(None, base, origin, conditions, "left to its parts")
    value = comparable(name, declared(declaration, name, {})[0])
    if conditions:
        words = f"{text_of(value)} on a condition, else {base}"
    elif origin is Origin.DECLARED:
        words = text_of(value)
    else:
        owner = reading.inherited_from if reading and origin is Origin.INHERITED else None
        source = f"inherited from {owner}" if owner else origin.value
        words = f"{source}, counts as {text_of(value)}"
    return Statement(value, base, origin, conditions, words)


def comparable(capability: str, value: object) -> object:
    """Write a value in the one form that equal values have: joined with the best."""
    kind = CAPABILITIES[capability]
    return kind.join(kind.best, value)


def _condition(when: When, capability: str) -> str:
    value = text_of(when.capabilities.stated()[capability])
    held = f"{value} where {when.given}"
    return held if str(when.given) in when.reason else f"{held}: {when.reason}"


def severity(capability: str, before: object, after: object) -> DifferenceKind | None:
    """Return which way a value changed; None where it is the same.

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
    """Rank a value by what it grants at all: sizes that no check has seen may grant nothing."""
    if isinstance(value, Conflict):
        return 0
    if isinstance(value, Unchecked):
        return 1 if value == kind.worst else 2
    return 3
