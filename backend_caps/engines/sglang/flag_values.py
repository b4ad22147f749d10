"""The values of a class's flag, case by case, each with the class that states it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from backend_caps.engines.source.guards import (
    Case,
    Function,
    Guards,
    conditions,
    in_turn,
    met,
    returns,
    where,
)
from backend_caps.engines.source.methods import (
    Stated,
    Statement,
    cases_of,
    standing,
    truth_cases,
)
from backend_caps.engines.source.module import ClassDef

_PROPERTIES = frozenset({"property", "cached_property"})
_LENGTHS = frozenset({"context_len", "max_context_len"})
_COMPUTES = frozenset({"int", "max", "min"})


@dataclass(frozen=True, slots=True)
class FlagValue:
    """A value, when it holds, and the class whose statement gives it."""

    value: ast.expr
    guards: Guards
    owner: ClassDef

    @property
    def truth(self) -> bool:
        """The value of a constant, as a flag is taken."""
        assert isinstance(self.value, ast.Constant), ast.unparse(self.value)
        return bool(self.value.value)


def settled(stated: Stated | None) -> Stated | None:
    """Leave out what never runs, and what something that always runs replaces.

    A condition that is a constant, as that of `while True:`, is none.
    """
    kept = [
        replace(each, guards=guards)
        for each in (stated.statements if stated is not None else ())
        if (guards := met(tuple(conditions(each.guards)))) is not None
    ]
    return Stated(tuple(standing(kept))) if kept else None


def values_of(stated: Stated) -> list[FlagValue]:
    """List the values of an attribute, or what the property or method of its name returns."""
    return _standing(_values(stated), stated)


def truths_of(stated: Stated) -> list[FlagValue]:
    """List the values as constants: what is computed is a case of its truth."""
    truths = (
        replace(each, value=case.value, guards=case.guards)
        for each in _values(stated)
        for case in truth_cases([Case(each.value, each.guards)])
    )
    return _standing(truths, stated)


def _values(stated: Stated) -> Iterator[FlagValue]:
    last = stated.last
    if isinstance(last.value, Function):
        for case in returns(last.value):
            yield FlagValue(case.value, last.guards + case.guards, last.owner)
        return
    for statement in stated.statements:
        for case in cases_of(Stated((statement,))):
            yield FlagValue(case.value, case.guards, statement.owner)


def _standing(values: Iterable[FlagValue], stated: Stated) -> list[FlagValue]:
    """List what may hold: of statements the last counts, of returns each is a way out."""
    found: list[FlagValue] = []
    for each in values:
        guards = met(tuple(conditions(each.guards)))
        if guards is None:
            continue
        if not guards and not isinstance(stated.last.value, Function):
            found = []
        found.append(replace(each, guards=guards))
    return found


def is_property(function: ast.expr | Function) -> bool:
    """Return whether a value is a property, not an attribute or a method to be called."""
    return isinstance(function, Function) and any(
        ast.unparse(each).rpartition(".")[2] in _PROPERTIES for each in function.decorator_list
    )


def is_length(value: ast.expr) -> bool:
    """Return whether a value certainly is a number of tokens; what a caller gives may be None."""
    match value:
        case ast.Constant(value=int(number)):
            return not isinstance(number, bool)
        case ast.Attribute(attr=name):
            return name in _LENGTHS
        case ast.Subscript(value=ast.Attribute(attr="shape")):
            return True
        case ast.Call(
            func=ast.Name(id="getattr"), args=[_, ast.Constant(value=str(name)), *default]
        ):
            return name in _LENGTHS and all(map(is_length, default))
        case ast.Call(func=ast.Name(id=function), args=[_, *_] as parts, keywords=[]):
            return function in _COMPUTES and all(map(is_length, parts))
        case ast.BinOp(left=left, right=right):
            return is_length(left) and is_length(right)
    return False


def words_of(stated: Stated, definition: ClassDef, root: ClassDef) -> str:
    """Write what a class has, and whose words these are where a base adds some."""
    owners = {each.owner for each in stated.statements}
    return "; ".join(
        f"{each.owner.name}: {_words(each)}"
        if definition in owners and each.owner not in {definition, root}
        else _words(each)
        for each in stated.statements
    )


def _words(statement: Statement) -> str:
    if not isinstance(statement.value, Function):
        return statement.text
    cases = in_turn(returns(statement.value))
    found = "; ".join(where(ast.unparse(case.value), case.guards) for case in cases)
    return where(f"returns {found or 'nothing'}", statement.guards)
