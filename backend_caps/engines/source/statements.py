"""Statements that give names their values, and what is left standing of a name after several."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from backend_caps.capability.backend import Reading
from backend_caps.capability.provenance import Origin
from backend_caps.engines.source.guards import (
    Case,
    Function,
    Guarded,
    Guards,
    branches,
    conditions,
    grouped,
    in_turn,
    met,
    negated,
    returns,
    under,
    where,
)

if TYPE_CHECKING:
    from backend_caps.engines.source.module import ClassDef

_IN_PLACE: dict[type[ast.operator], bool] = {ast.BitOr: True, ast.BitAnd: False}
"""The value that `|=` and `&=` give where their right side holds, or does not."""
_SIGNS: dict[type[ast.operator], str] = {ast.BitOr: "|", ast.BitAnd: "&"}
_FALSE, _TRUE = ast.Constant(value=False), ast.Constant(value=True)
_Item = TypeVar("_Item")
_Bound = tuple[ast.expr, ast.expr | Function, type[ast.operator] | None]


@dataclass(frozen=True, slots=True)
class StatedValue:
    """A value, when it holds, and the class whose statement gives it."""

    value: ast.expr
    guards: Guards
    owner: ClassDef

    @property
    def truth(self) -> bool:
        """The value of a constant, as a flag is taken."""
        assert isinstance(self.value, ast.Constant), ast.unparse(self.value)
        return bool(self.value.value)


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement that gives a name its value."""

    name: str
    owner: ClassDef
    """The class whose body, or whose method, it stands in."""
    value: ast.expr | Function
    """A function where a method or a property has the name."""
    guards: Guards
    line: int
    operator: type[ast.operator] | None = None
    """Of `|=` and the like."""

    @property
    def at(self) -> str:
        """`file:line`."""
        return f"{self.owner.module.path}:{self.line}"

    @property
    def text(self) -> str:
        """The statement as the source has it, with its condition."""
        if not isinstance(self.value, ast.expr):
            return where(f"def {self.name}", self.guards)
        sign = "=" if self.operator is None else f"{_SIGNS.get(self.operator, '?')}="
        return where(f"{self.name} {sign} {ast.unparse(self.value)}", self.guards)

    @property
    def outcome(self) -> str:
        """The text of the statement; of a method or a property, of what it returns."""
        if not isinstance(self.value, Function):
            return self.text
        cases = in_turn(returns(self.value))
        found = "; ".join(where(ast.unparse(case.value), case.guards) for case in cases)
        return where(f"returns {found or 'nothing'}", self.guards)

    @property
    def is_certain(self) -> bool:
        """Whether it always runs, and replaces whatever the name had."""
        return not self.guards and self.operator is None

    @property
    def cases(self) -> list[StatedValue]:
        """Its values, and when they hold; of a method or a property, what it returns.

        `|=` is a case in which the value is true, `&=` one in which it is false; the branches of
        a conditional expression are cases of their own.
        """
        found: Iterable[Case] = ()
        if isinstance(self.value, Function):
            found = under(self.guards, returns(self.value))
        elif self.operator is None:
            found = branches(self.value, self.guards)
        elif (value := _IN_PLACE.get(self.operator)) is not None:
            held = self.value if value else negated(self.value)
            found = branches(ast.Constant(value=value), (*self.guards, held))
        return [StatedValue(value, guards, self.owner) for guards, value in found]


_Stands = TypeVar("_Stands", Statement, StatedValue)


@dataclass(frozen=True, slots=True)
class Stated:
    """What is left standing of a name: the last statement that always runs, and those after it."""

    statements: tuple[Statement, ...]

    @property
    def last(self) -> Statement:
        """The one that decides."""
        return self.statements[-1]

    @property
    def is_understood(self) -> bool:
        """Whether only operators stand in the statements whose values are known."""
        return all(each.operator in {None, *_IN_PLACE} for each in self.statements)

    @property
    def words(self) -> str:
        """The statements in the source's words."""
        return "; ".join(each.text for each in self.statements)

    def reading(self, origin: Origin, words: str, value: object = None) -> Reading:
        """Return a class's reading; an inherited one names the base that states it."""
        return Reading(
            origin=origin,
            words=words,
            value=value,
            declared_at=self.last.at,
            inherited_from=self.last.owner.name if origin is Origin.INHERITED else None,
        )

    def words_for(self, definition: ClassDef, root: ClassDef) -> str:
        """Write what a class has; what another base than the root adds, with the base's name."""
        owners = {each.owner for each in self.statements}
        return "; ".join(
            f"{each.owner.name}: {each.outcome}"
            if definition in owners and each.owner not in {definition, root}
            else each.outcome
            for each in self.statements
        )

    @property
    def values(self) -> list[StatedValue]:
        """The values of an attribute, or what the property or method of its name returns."""
        return self._standing(self._cases())

    @property
    def truths(self) -> list[StatedValue]:
        """The values as constants: what is computed is a case of its truth.

        Where its guards hold and it does not, the flag is false.
        """
        found: list[StatedValue] = []
        for each in self._cases():
            if isinstance(each.value, ast.Constant):
                found.append(each)
            else:
                true = replace(each, value=_TRUE, guards=(*each.guards, each.value))
                found += [replace(each, value=_FALSE), true]
        return self._standing(found)

    def _cases(self) -> list[StatedValue]:
        """List the cases of a method alone, or of the statements that are no methods."""
        if isinstance(self.last.value, Function):
            return self.last.cases
        found = (each for each in self.statements if not isinstance(each.value, Function))
        return [case for each in found for case in each.cases]

    def _standing(self, values: Iterable[StatedValue]) -> list[StatedValue]:
        """List what may hold: of statements the last counts, of returns each is a way out."""
        found = _reached(values)
        is_method = isinstance(self.last.value, Function)
        return found if is_method else standing(found, lambda each: not each.guards)


def _reached(found: Iterable[_Stands]) -> list[_Stands]:
    """Leave out what never runs; a condition that is a constant, as of `while True:`, is none."""
    reached = ((each, met(tuple(conditions(each.guards)))) for each in found)
    return [replace(each, guards=guards) for each, guards in reached if guards is not None]


def left_standing(found: Iterable[Statement]) -> list[Statement]:
    """List what is left of a name's statements, of those that may run."""
    return standing(_reached(found), lambda each: each.is_certain)


def standing(items: Iterable[_Item], is_certain: Callable[[_Item], bool]) -> list[_Item]:
    """List what is left of what a name is given: the last that is certain, and those after it."""
    left: list[_Item] = []
    for each in items:
        if is_certain(each):
            left = []
        left.append(each)
    return left


def statements(
    owner: ClassDef, body: Iterable[Guarded[ast.stmt]], of: str = ""
) -> Iterator[Statement]:
    """List the statements that set plain names, or attributes `of` a name, for a class."""
    for guards, node in body:
        for target, value, operator in bound(node):
            holder, name = attribute(target)
            if holder == of:
                yield Statement(name, owner, value, guards, node.lineno, operator)


def by_name(found: Iterable[Statement]) -> Mapping[str, list[Statement]]:
    """Sort statements by the name that they give a value."""
    return grouped((each.name, each) for each in found)


def bound(node: ast.AST) -> Iterator[_Bound]:
    """List the targets that a statement gives a value, and by which operator, if by one."""
    match node:
        case ast.Assign(targets=targets, value=value):
            yield from ((*pair, None) for each in targets for pair in _unpacked(each, value))
        case ast.AnnAssign(target=target, value=ast.expr() as value):
            yield target, value, None
        case ast.AugAssign(target=target, op=operator, value=value):
            yield target, value, type(operator)
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) if not any(
            isinstance(each, ast.Attribute) and each.attr in {"setter", "deleter"}
            for each in node.decorator_list  # a property's, which has its name already
        ):
            yield ast.Name(id=name, ctx=ast.Store()), node, None


def _unpacked(target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    match target, value:
        case ast.Tuple(elts=targets) | ast.List(elts=targets), ast.Tuple(elts=values) | ast.List(
            elts=values
        ) if len(targets) == len(values) and not any(
            isinstance(each, ast.Starred) for each in [*targets, *values]
        ):
            for one, own in zip(targets, values, strict=True):
                yield from _unpacked(one, own)
        case ast.Tuple(elts=targets) | ast.List(elts=targets), _:
            for at, one in enumerate(targets):
                place = ast.copy_location(ast.Constant(value=at), value)
                item = ast.Subscript(value=value, slice=place, ctx=ast.Load())
                inner = one.value if isinstance(one, ast.Starred) else one
                yield from _unpacked(inner, ast.copy_location(item, value))
        case _:
            yield target, value


def attribute(target: ast.expr) -> tuple[str, str]:
    """Read `self` and `x` of `self.x`; a plain name is an attribute of nothing."""
    match target:
        case ast.Name(id=name):
            return "", name
        case ast.Attribute(value=value, attr=name):
            return ast.unparse(value), name
    return ast.unparse(target), ""
