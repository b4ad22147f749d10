"""Runs one statement of the source, with the names of its scope."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Mapping
from typing import Protocol

from tests.upstream.atlas.unknown_values import OnlyRunError, Unknown, Value


class Names(Protocol):
    """What gives a statement its names."""

    path: str

    def resolve(self, name: str) -> Value:
        """Return the value of a name."""

    def module_of(self, statement: ast.ImportFrom) -> Value:
        """Return the module that a statement imports from."""


class _Globals(dict[str, Value]):
    """The globals of a statement: its own names, those of Python, then those of its scope."""

    def __init__(self, scope: Names, own: Mapping[str, Value]) -> None:
        super().__init__(own)
        self["__builtins__"] = {**vars(builtins), **_BUILTINS, "__import__": self._import}
        self._scope = scope

    def __missing__(self, name: str) -> Value:
        if name in _BUILTINS:
            return _BUILTINS[name]
        if hasattr(builtins, name):
            return getattr(builtins, name)
        return self._scope.resolve(name)

    def _import(
        self, name: str, _: object = None, __: object = None, names: object = (), level: int = 0
    ) -> Value:
        source = name if names else name.partition(".")[0]
        return self._scope.module_of(ast.ImportFrom(module=source, names=[], level=level))


def _isinstance(value: object, kind: Value) -> object:
    kinds = kind if isinstance(kind, tuple) else (kind,)
    known = tuple(each for each in kinds if isinstance(each, type))
    if isinstance(value, known):
        return True
    is_open = isinstance(value, Unknown) or (len(known) < len(kinds) and not _is_plain(value))
    return Unknown(f"isinstance({value!r}, {kind!r})") if is_open else False


def _is_plain(value: object) -> bool:
    return isinstance(value, int | str | float | list | tuple | dict | type(None))


def _is_none(value: object) -> object:
    return Unknown(f"{value!r} is None") if isinstance(value, Unknown) else value is None


def _hasattr(value: object, name: str) -> object:
    is_open = isinstance(value, Unknown)
    return Unknown(f"hasattr({value!r}, {name!r})") if is_open else hasattr(value, name)


_BUILTINS: Mapping[str, Value] = {
    "isinstance": _isinstance,
    "hasattr": _hasattr,
    "is_none_": _is_none,
    "TYPE_CHECKING": False,
}


class _Plain(ast.NodeTransformer):
    """Leaves annotations and decorators away, and lets an unknown value answer `is None`."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """Leave the annotations away."""
        self.generic_visit(node)
        for each in ast.walk(node.args):
            if isinstance(each, ast.arg):
                each.annotation = None
        node.returns, node.decorator_list = None, []
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        """Make an assignment of an annotated one."""
        self.generic_visit(node)
        if node.value is None:
            return ast.Pass()
        return ast.Assign(targets=[node.target], value=node.value)

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        """Ask a function here whether a value is None."""
        self.generic_visit(node)
        match node:
            case ast.Compare(ops=[ast.Is() | ast.IsNot() as op], comparators=[ast.Constant(None)]):
                name = ast.Name("is_none_", ast.Load())
                asked = ast.Call(func=name, args=[node.left], keywords=[])
                return asked if isinstance(op, ast.Is) else ast.UnaryOp(ast.Not(), asked)
        return node


def run(statement: ast.stmt, scope: Names, own: Mapping[str, Value]) -> dict[str, Value]:
    """Run one statement; return the names it had and bound."""
    copy = ast.parse(ast.unparse(statement))
    tree = ast.fix_missing_locations(_Plain().visit(copy))
    names = _Globals(scope, own)
    exec(compile(tree, scope.path, "exec"), names)  # noqa: S102 the statement in question
    return names


def eval_(expression: ast.expr, scope: Names) -> Value:
    """Run an expression of a scope; it is unknown where it cannot be run."""
    try:
        return evaluate(expression, scope, {})
    except (Exception, OnlyRunError):  # noqa: BLE001 the source may raise anything
        return Unknown(ast.unparse(expression))


def evaluate(expression: ast.expr, scope: Names, own: Mapping[str, Value]) -> Value:
    """Run an expression of a scope with names of its own."""
    target = ast.Name("result_", ast.Store())
    statement = ast.fix_missing_locations(ast.Assign(targets=[target], value=expression))
    return run(statement, scope, own)["result_"]
