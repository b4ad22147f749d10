"""What a function returns, and when; what a call makes, followed from function to function."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from backend_caps.engines.source.attributes import Case, branches
from backend_caps.engines.source.classes import Classes
from backend_caps.engines.source.guards import Guards, condition, guarded
from backend_caps.engines.source.index import FunctionDef, Index, Value
from backend_caps.engines.source.module import ClassDef, Function, Module, Scope, methods_of

_DEEPEST = 12
"""As many calls are followed one into another; nobody builds a backend deeper."""
_MOST_CALLS = 2000
"""As many calls are followed for one function, on all the ways that conditions open."""


def returns(function: Function) -> tuple[Case, ...]:
    """List what a function returns, in the order of its text; of a bare `return`, nothing."""
    return tuple(
        case
        for statement in guarded(function.body)
        if isinstance(statement.node, ast.Return) and statement.node.value is not None
        for case in branches(statement.node.value, statement.guards)
    )


class Makers:
    """Finds the classes whose instances a function returns."""

    def __init__(
        self,
        index: Index,
        classes: Classes,
        *,
        tables: Mapping[str, Mapping[str, FunctionDef]] | None = None,
    ) -> None:
        """Take what is known already.

        Args:
            index: the tree.
            classes: their bases.
            tables: by the name of a table that code looks functions up in, its functions.
        """
        self._index = index
        self._classes = classes
        self._tables = tables or {}
        self._num_calls = 0

    def made(
        self, function: FunctionDef, owner: ClassDef | None = None
    ) -> list[tuple[Guards, ClassDef]]:
        """List the classes of what a function returns, each with its guards.

        Args:
            function: the factory.
            owner: the class it is a method of, if it is one.
        """
        self._num_calls = 0
        found = self._of_function(function, owner, 0)
        return list({(condition(guards), made): (guards, made) for guards, made in found}.values())

    def _of_function(
        self, function: FunctionDef, owner: ClassDef | None, depth: int
    ) -> Iterator[tuple[Guards, ClassDef]]:
        self._num_calls += 1
        if depth > _DEEPEST or self._num_calls > _MOST_CALLS:
            return
        scope = function.module.scope_in(function.node)
        for case in returns(function.node):
            for guards, made in self._of_value(case.value, function.module, scope, owner, depth):
                yield (*case.guards, *guards), made

    def _of_value(
        self, value: ast.expr, module: Module, scope: Scope, owner: ClassDef | None, depth: int
    ) -> Iterator[tuple[Guards, ClassDef]]:
        """Follow a returned value: a call, a name for one, or a tuple whose last item is one."""
        match value:
            case ast.Tuple(elts=[*_, last]):
                yield from self._of_value(last, module, scope, owner, depth)
            case ast.Call(func=ast.Attribute(value=ast.Name(id="self"), attr=name)) if owner:
                yield from self._of_method(name, owner, depth)
            case ast.Call(
                func=ast.Subscript(value=ast.Name(id=table), slice=ast.Constant(value=str(key)))
            ) if key in self._tables.get(table, {}):
                yield from self._of_function(self._tables[table][key], None, depth + 1)
            case ast.Call(func=called):
                yield from self._called(called, module, scope, owner, depth)
            case ast.Name():
                yield from self._of_variable(value, module, scope, owner, depth)

    def _of_method(
        self, name: str, owner: ClassDef, depth: int
    ) -> Iterator[tuple[Guards, ClassDef]]:
        for base in self._classes.ancestors(owner):
            if name in methods_of(base):
                inner = FunctionDef(base.module, methods_of(base)[name])
                yield from self._of_function(inner, owner, depth + 1)
                return

    def _of_variable(
        self, name: ast.Name, module: Module, scope: Scope, owner: ClassDef | None, depth: int
    ) -> Iterator[tuple[Guards, ClassDef]]:
        for guards, target in self._index.resolve(name, module, (scope,)):
            if isinstance(target, Value) and isinstance(target.node, ast.Call):
                call, around = target.node, target.module
                names = scope if around is module else {}
                for more, made in self._of_value(call, around, names, owner, depth + 1):
                    yield guards + more, made

    def _called(
        self, called: ast.expr, module: Module, scope: Scope, owner: ClassDef | None, depth: int
    ) -> Iterator[tuple[Guards, ClassDef]]:
        for guards, target in self._index.resolve(called, module, (scope,)):
            if isinstance(target, ClassDef):
                yield guards, target
            elif isinstance(target, FunctionDef):
                for more, made in self._of_function(target, owner, depth + 1):
                    yield guards + more, made
