"""What a flag of a class holds, case by case, and which class says so."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from backend_caps.engines.source.attributes import Case, Stated, cases_of, truth_cases
from backend_caps.engines.source.guards import Guards, condition, conditions, negated
from backend_caps.engines.source.module import ClassDef, Function
from backend_caps.engines.source.returns import returns
from backend_caps.engines.source.statements import Statement, standing
from backend_caps.engines.source.truth import met

_PROPERTIES = frozenset({"property", "cached_property"})
_LENGTHS = frozenset({"context_len", "max_context_len"})
_COMPUTES = frozenset({"int", "max", "min"})


@dataclass(frozen=True, slots=True)
class Said:
    """A value, when it holds, and the class whose statement gives it."""

    value: ast.expr
    guards: Guards
    owner: ClassDef


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


def values_of(stated: Stated) -> list[Said]:
    """List the values of an attribute, or what the property or method of its name returns."""
    return _standing(_said(stated), stated)


def truths_of(stated: Stated) -> list[Said]:
    """List the values as constants: what is computed is a case of its truth."""
    said = (
        replace(each, value=case.value, guards=case.guards)
        for each in _said(stated)
        for case in truth_cases((Case(each.value, each.guards),))
    )
    return _standing(said, stated)


def _said(stated: Stated) -> Iterator[Said]:
    last = stated.last
    if isinstance(last.value, Function):
        for case in returns(last.value):
            yield Said(case.value, (*last.guards, *case.guards), last.owner)
        return
    for statement in stated.statements:
        for case in cases_of(Stated((statement,))):
            yield Said(case.value, case.guards, statement.owner)


def _standing(said: Iterable[Said], stated: Stated) -> list[Said]:
    """List what may hold: of statements the last counts, of returns each is a way out."""
    found: list[Said] = []
    for each in said:
        guards = met(tuple(conditions(each.guards)))
        if guards is None:
            continue
        if not guards and not isinstance(stated.last.value, Function):
            found = []
        found.append(replace(each, guards=guards))
    return found


def is_property(function: ast.expr | Function) -> bool:
    """Tell a property from an attribute, and from a method that is to be called."""
    return isinstance(function, Function) and any(
        ast.unparse(each).rpartition(".")[2] in _PROPERTIES for each in function.decorator_list
    )


def is_length(value: ast.expr) -> bool:
    """Tell whether a value certainly is a number of tokens; what a caller gives may be None."""
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
    """Write what a class is told to have, and whose words these are where a base adds some."""
    owners = {each.owner for each in stated.statements}
    return "; ".join(
        f"{each.owner.name}: {_words(each)}"
        if definition in owners and each.owner not in {definition, root}
        else _words(each)
        for each in stated.statements
    )


def _words(statement: Statement) -> str:
    value = statement.value
    if isinstance(value, Function):
        found = "; ".join(_answers(value))
        return _where(f"returns {found or 'nothing'}", statement.guards)
    return _where(statement.text, statement.guards)


def _answers(function: Function) -> Iterator[str]:
    """Write what a function returns in turn: what has failed is not said again."""
    failed: set[str] = set()
    for case in returns(function):
        left = [each for each in conditions(case.guards) if ast.unparse(each) not in failed]
        yield _where(ast.unparse(case.value), tuple(left))
        if left:
            whole = left[0] if len(left) == 1 else ast.BoolOp(op=ast.And(), values=left)
            failed.add(ast.unparse(negated(whole)))


def _where(text: str, guards: Guards) -> str:
    when = condition(guards)
    return f"{text} where {when}" if when else text
