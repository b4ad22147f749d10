"""The statements of classes and their methods that give some names their values."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from backend_caps.engines.source.guards import (
    Case,
    Function,
    Guards,
    conditions,
    guarded,
    in_turn,
    met,
    returns,
    spans,
    where,
)
from backend_caps.engines.source.module import ClassDef, Statement, standing, statements

Step = tuple[Guards, Statement | ast.Call]
"""What a method does, and when: it gives a name its value, or calls what may."""
Setter = tuple[Guards, Function, Sequence[Statement]]
"""A method that gives names their values, and when the class has it."""


_Guarded = TypeVar("_Guarded", Statement, "StatedValue")


@dataclass(frozen=True, slots=True)
class Stated:
    """What is left standing of a name: the last statement that always runs, and those after it."""

    statements: tuple[Statement, ...]

    @property
    def base(self) -> Statement | None:
        """The one that always runs."""
        first = self.statements[0]
        return first if first.is_certain else None

    @property
    def last(self) -> Statement:
        """The one that decides."""
        return self.statements[-1]

    @property
    def words(self) -> str:
        """The statements in the source's words."""
        return "; ".join(statement.text for statement in self.statements)


@dataclass(frozen=True, slots=True)
class StatedValue(Case):
    """A value, when it holds, and the class whose statement gives it."""

    owner: ClassDef

    @property
    def truth(self) -> bool:
        """The value of a constant, as a flag is taken."""
        assert isinstance(self.value, ast.Constant), ast.unparse(self.value)
        return bool(self.value.value)


def values_of(stated: Stated) -> list[StatedValue]:
    """List the values of an attribute, or what the property or method of its name returns."""
    return _held(_values(stated), stated)


def truths_of(stated: Stated) -> list[StatedValue]:
    """List the values as constants: what is computed is a case of its truth.

    Where its guards hold and it does not, the flag is false.
    """
    found: list[StatedValue] = []
    for each in _values(stated):
        if isinstance(each.value, ast.Constant):
            found.append(each)
        else:
            true = replace(each, value=ast.Constant(value=True), guards=(*each.guards, each.value))
            found += [replace(each, value=ast.Constant(value=False)), true]
    return _held(found, stated)


def _values(stated: Stated) -> Iterator[StatedValue]:
    is_method = isinstance(stated.last.value, Function)
    for statement in stated.statements[-1:] if is_method else stated.statements:
        if is_method or not isinstance(statement.value, Function):
            for case in statement.cases:
                yield StatedValue(case.value, case.guards, statement.owner)


def _held(values: Iterable[StatedValue], stated: Stated) -> list[StatedValue]:
    """List what may hold: of statements the last counts, of returns each is a way out."""
    found = _reached(values)
    is_method = isinstance(stated.last.value, Function)
    return found if is_method else standing(found, lambda each: not each.guards)


def _reached(found: Iterable[_Guarded]) -> list[_Guarded]:
    """Leave out what never runs; a condition that is a constant, as of `while True:`, is none."""
    reached = ((each, met(tuple(conditions(each.guards)))) for each in found)
    return [replace(each, guards=guards) for each, guards in reached if guards is not None]


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


def left_standing(found: Iterable[Statement]) -> list[Statement]:
    """List what is left of a name's statements, of those that may run."""
    return standing(_reached(found), lambda each: each.is_certain)


class Methods:
    """Reads methods, each once, where the text says that one of the names is in them."""

    def __init__(self, names: Collection[str]) -> None:
        self.names = frozenset(names)
        self._steps: dict[Function, list[Step]] = {}
        self._setters: dict[ClassDef, list[Setter]] = {}

    def steps(self, owner: ClassDef, function: Function) -> list[Step]:
        """List what a method does that may give one of the names a value, in its order."""
        if function not in self._steps:
            self._steps[function] = list(self._read(owner, function))
        return self._steps[function]

    def _read(self, owner: ClassDef, function: Function) -> Iterator[Step]:
        has_names = self.mentions(owner, function)
        for statement in guarded(function.body):
            node, guards = statement.node, statement.guards
            match node:
                case (
                    ast.Expr(value=ast.Call() as call)
                    | ast.Assign(value=ast.Call() as call)
                    | ast.AnnAssign(value=ast.Call() as call)
                    | ast.Return(value=ast.Call() as call)
                ):
                    yield guards, call
            own = statements(owner, [statement], "self") if has_names else ()
            yield from ((guards, each) for each in own if each.name in self.names)

    def setters(self, owner: ClassDef) -> Sequence[Setter]:
        """List the methods of a class that themselves give one of the names a value."""
        if owner not in self._setters:
            is_mentioned = self.mentions(owner, owner.node)
            alternatives = owner.alternatives.values() if is_mentioned else ()
            methods = (m for own in alternatives for m in own if self.mentions(owner, m[1]))
            found = ((*each, self._statements(owner, each[1])) for each in methods)
            self._setters[owner] = [each for each in found if each[2]]
        return self._setters[owner]

    def _statements(self, owner: ClassDef, method: Function) -> list[Statement]:
        return [step for _, step in self.steps(owner, method) if isinstance(step, Statement)]

    def mentions(self, definition: ClassDef, node: ast.stmt) -> bool:
        """Return whether the text of a class or function has one of the names in it."""
        return spans(node, definition.module.lines(self.names))


def pieces(
    node: ast.AST, lines: Sequence[int], around: tuple[ast.stmt, ...] = ()
) -> Iterator[tuple[ast.AST, tuple[ast.stmt, ...]]]:
    """List the smallest statements, and heads of larger ones, that stand on some lines.

    Each comes with the functions and classes around it, outermost first.
    """
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            if not spans(child, lines):
                continue
            if isinstance(child, ast.ClassDef | Function):
                yield from ((each, around) for each in child.decorator_list)
                yield from pieces(child, lines, (*around, child))
            elif hasattr(child, "body") or isinstance(child, ast.Match):
                yield from pieces(child, lines, around)
            else:
                yield child, around
        elif isinstance(child, ast.ExceptHandler | ast.match_case):
            yield from pieces(child, lines, around)
        elif not isinstance(node, ast.Module) and spans(child, lines):
            yield child, around
