"""Statements that give names, or attributes of `self`, their values."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from backend_caps.engines.source.guards import Guards
from backend_caps.engines.source.module import ClassDef, Function, assigned, is_setter

_SIGNS: dict[type[ast.operator], str] = {ast.BitOr: "|", ast.BitAnd: "&"}


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
        """The statement as the source has it, its condition aside."""
        if not isinstance(self.value, ast.expr):
            return f"def {self.name}"
        sign = "=" if self.operator is None else f"{_SIGNS.get(self.operator, '?')}="
        return f"{self.name} {sign} {ast.unparse(self.value)}"

    @property
    def is_certain(self) -> bool:
        """Whether it always runs, and leaves nothing of what the name had."""
        return not self.guards and self.operator is None


def standing(statements: Iterable[Statement]) -> list[Statement]:
    """List what is left of a name's statements: the last that is certain, and those after it."""
    left: list[Statement] = []
    for statement in statements:
        if statement.is_certain:
            left = []
        left.append(statement)
    return left


Bound = tuple[str, ast.expr | Function, type[ast.operator] | None]


def bound(node: ast.stmt, name_of: Callable[[ast.expr], str | None]) -> Iterator[Bound]:
    """List what a statement binds to names, or to attributes of `self`."""
    match node:
        case ast.Assign() | ast.AnnAssign():
            for target, value in assigned(node):
                if name := name_of(target):
                    yield name, value, None
        case ast.AugAssign(target=target, op=operator, value=value):
            if name := name_of(target):
                yield name, value, type(operator)
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            if name_of is named and not is_setter(node):
                yield name, node, None


def named(target: ast.expr) -> str | None:
    """Read a name."""
    return target.id if isinstance(target, ast.Name) else None


def of_self(target: ast.expr) -> str | None:
    """Read the name of an attribute of `self`."""
    match target:
        case ast.Attribute(value=ast.Name(id="self"), attr=name):
            return name
    return None
