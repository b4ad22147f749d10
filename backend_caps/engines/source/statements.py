"""Statements that set names, and those whose values survive the statements after them."""

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
"""The value that `|=` gives where its right side holds, and `&=` where it does not."""
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
        """The truth of a constant."""
        assert isinstance(self.value, ast.Constant), ast.unparse(self.value)
        return bool(self.value.value)


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement that gives a name its value."""

    name: str
    owner: ClassDef
    """The class whose body or method contains it."""
    value: ast.expr | Function
    """A function where a method or a property has the name."""
    guards: Guards
    line: int
    operator: type[ast.operator] | None = None
    """The operator of an augmented assignment such as `|=`."""

    @property
    def at(self) -> str:
        """`file:line`."""
        return f"{self.owner.module.path}:{self.line}"

    @property
    def text(self) -> str:
        """The statement in the source's words, with its condition."""
        if not isinstance(self.value, ast.expr):
            return where(f"def {self.name}", self.guards)
        sign = "=" if self.operator is None else f"{_SIGNS.get(self.operator, '?')}="
        return where(f"{self.name} {sign} {ast.unparse(self.value)}", self.guards)

    @property
    def outcome(self) -> str:
        """The text of the statement; of a method or property, the values it returns."""
        if not isinstance(self.value, Function):
            return self.text
        cases = in_turn(returns(self.value))
        values = "; ".join(where(ast.unparse(case.value), case.guards) for case in cases)
        return where(f"returns {values or 'nothing'}", self.guards)

    @property
    def is_certain(self) -> bool:
        """Whether it always runs, and replaces any earlier value."""
        return not self.guards and self.operator is None

    @property
    def cases(self) -> list[StatedValue]:
        """The values with their conditions; of a method or property, the returned ones.

        `|=` is a case in which the value is true, `&=` one in which it is false. Each branch of
        a conditional expression is a case.
        """
        cases: Iterable[Case] = ()
        if isinstance(self.value, Function):
            cases = under(self.guards, returns(self.value))
        elif self.operator is None:
            cases = branches(self.value, self.guards)
        elif (value := _IN_PLACE.get(self.operator)) is not None:
            changes = self.value if value else negated(self.value)
            cases = branches(ast.Constant(value=value), (*self.guards, changes))
        return [StatedValue(value, guards, self.owner) for guards, value in cases]


_Reachable = TypeVar("_Reachable", Statement, StatedValue)


@dataclass(frozen=True, slots=True)
class Stated:
    """The statements that decide a name: the last that always runs, and those after."""

    statements: tuple[Statement, ...]

    @property
    def last(self) -> Statement:
        """The statement that runs last."""
        return self.statements[-1]

    @property
    def is_understood(self) -> bool:
        """Whether each augmented assignment is `|=` or `&=`, whose values are known."""
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
        """Write a class's statements; those of a base below the root with its name."""
        owners = {each.owner for each in self.statements}
        return "; ".join(
            f"{each.owner.name}: {each.outcome}"
            if definition in owners and each.owner not in {definition, root}
            else each.outcome
            for each in self.statements
        )

    @property
    def values(self) -> list[StatedValue]:
        """The values of an attribute, or those that a property or method returns."""
        return self._surviving(self._cases())

    @property
    def truths(self) -> list[StatedValue]:
        """The values as constants; a computed one becomes a false and a true case.

        The true case comes after the false one, and is guarded by the computed value.
        """
        truths: list[StatedValue] = []
        for each in self._cases():
            if isinstance(each.value, ast.Constant):
                truths.append(each)
            else:
                true = replace(each, value=_TRUE, guards=(*each.guards, each.value))
                truths += [replace(each, value=_FALSE), true]
        return self._surviving(truths)

    def _cases(self) -> list[StatedValue]:
        """List the cases of the last statement, a method, or of all that are none."""
        if isinstance(self.last.value, Function):
            return self.last.cases
        assignments = (each for each in self.statements if not isinstance(each.value, Function))
        return [case for each in assignments for case in each.cases]

    def _surviving(self, values: Iterable[StatedValue]) -> list[StatedValue]:
        """List the values that may hold; a later `return` replaces no earlier one."""
        reached = _reached(values)
        is_method = isinstance(self.last.value, Function)
        return reached if is_method else surviving(reached, lambda each: not each.guards)


def _reached(items: Iterable[_Reachable]) -> list[_Reachable]:
    """Drop items that never run, and constant conditions such as that of `while True:`."""
    checked = ((each, met(tuple(conditions(each.guards)))) for each in items)
    return [replace(each, guards=guards) for each, guards in checked if guards is not None]


def live_statements(every: Iterable[Statement]) -> list[Statement]:
    """List the statements of one name that may run and may decide its value."""
    return surviving(_reached(every), lambda each: each.is_certain)


def surviving(items: Iterable[_Item], is_certain: Callable[[_Item], bool]) -> list[_Item]:
    """List the last item that is certain, and all items after it."""
    survivors: list[_Item] = []
    for each in items:
        if is_certain(each):
            survivors = []
        survivors.append(each)
    return survivors


def statements(
    owner: ClassDef, body: Iterable[Guarded[ast.stmt]], of: str = ""
) -> Iterator[Statement]:
    """List the statements that set plain names, or attributes `of` a name, for a class."""
    for guards, node in body:
        for target, value, operator in bound(node):
            holder, name = attribute(target)
            if holder == of:
                yield Statement(name, owner, value, guards, node.lineno, operator)


def by_name(every: Iterable[Statement]) -> Mapping[str, list[Statement]]:
    """Group statements by the name that they set."""
    return grouped((each.name, each) for each in every)


def bound(node: ast.AST) -> Iterator[_Bound]:
    """List the targets that a statement sets, each with its value and any operator."""
    match node:
        case ast.Assign(targets=targets, value=value):
            yield from ((*pair, None) for each in targets for pair in _unpacked(each, value))
        case ast.AnnAssign(target=target, value=ast.expr() as value):
            yield target, value, None
        case ast.AugAssign(target=target, op=operator, value=value):
            yield target, value, type(operator)
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) if not any(
            isinstance(each, ast.Attribute) and each.attr in {"setter", "deleter"}
            for each in node.decorator_list  # a setter keeps the getter of its property
        ):
            yield ast.Name(id=name, ctx=ast.Store()), node, None


def _unpacked(target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    match target, value:
        case ast.Tuple(elts=targets) | ast.List(elts=targets), ast.Tuple(elts=values) | ast.List(
            elts=values
        ) if len(targets) == len(values) and not any(
            isinstance(each, ast.Starred) for each in [*targets, *values]
        ):
            for inner, item in zip(targets, values, strict=True):
                yield from _unpacked(inner, item)
        case ast.Tuple(elts=targets) | ast.List(elts=targets), _:
            for at, each in enumerate(targets):
                place = ast.copy_location(ast.Constant(value=at), value)
                part = ast.Subscript(value=value, slice=place, ctx=ast.Load())
                inner = each.value if isinstance(each, ast.Starred) else each
                yield from _unpacked(inner, ast.copy_location(part, value))
        case _:
            yield target, value


def attribute(target: ast.expr) -> tuple[str, str]:
    """Split `self.x` into `self` and `x`; a plain name has an empty holder."""
    match target:
        case ast.Name(id=name):
            return "", name
        case ast.Attribute(value=value, attr=name):
            return ast.unparse(value), name
    return ast.unparse(target), ""
