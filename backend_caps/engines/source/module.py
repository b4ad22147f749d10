"""One parsed file: what its names mean, without running it."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from backend_caps.engines.source.guards import Guards, guarded

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True, eq=False)
class ClassDef:
    """A class statement."""

    module: Module
    node: ast.ClassDef
    guards: Guards
    """When the statement runs."""
    outer: str = ""
    """The functions and classes that it stands in, each with a dot."""
    functions: tuple[Function, ...] = ()
    """The functions that it stands in, innermost first."""

    @property
    def name(self) -> str:
        """The class's own name."""
        return self.node.name

    @property
    def path(self) -> str:
        """`package.module.Class`."""
        return f"{self.module.name}.{self.outer}{self.name}"

    @property
    def at(self) -> str:
        """`file:line`."""
        return self.module.at(self.node)


@dataclass(frozen=True, slots=True)
class Import:
    """A name that comes from another module, or is one."""

    module: str
    attribute: str | None
    """None where the name is the module itself."""


@dataclass(frozen=True, slots=True)
class Assigned:
    """A name that an expression gives its value."""

    value: ast.expr


Meaning = Import | Assigned | ClassDef | Function
Scope = Mapping[str, Sequence[tuple[Guards, Meaning]]]
"""What each name may mean, and under which conditions."""


@dataclass(eq=False)
class Module:
    """A file of the tree."""

    name: str
    path: str
    tree: ast.Module
    is_package: bool
    class_lines: Sequence[int] = ()
    """The lines on which the text has the word `class` with an indent before it."""
    classes: list[ClassDef] = field(default_factory=list)
    """Every class statement of the file, inner ones too."""

    def __post_init__(self) -> None:
        self.classes = list(self._classes(self.tree.body, (), ""))

    def close(self) -> None:
        """Let go of the classes, which hold the module."""
        self.classes.clear()
        self.__dict__.pop("scope", None)

    def at(self, node: ast.stmt | ast.expr) -> str:
        """Say where a node stands, as `file:line`."""
        return f"{self.path}:{node.lineno}"

    @cached_property
    def stars(self) -> list[str]:
        """The modules whose every name is imported."""
        return [
            self.absolute(statement.node)
            for statement in guarded(self.tree.body)
            if isinstance(statement.node, ast.ImportFrom)
            and any(alias.name == "*" for alias in statement.node.names)
        ]

    @cached_property
    def scope(self) -> Scope:
        """What the module's own names mean."""
        own = {id(each.node): each for each in self.classes}
        return self.scope_of(self.tree.body, own)

    def scope_of(
        self, body: Sequence[ast.stmt], classes: Mapping[int, ClassDef] | None = None
    ) -> Scope:
        """Say what the names mean that a body binds."""
        found: dict[str, list[tuple[Guards, Meaning]]] = {}
        for statement in guarded(body):
            for name, meaning in self._bound(statement.node, classes or {}):
                found.setdefault(name, []).append((statement.guards, meaning))
        return found

    def absolute(self, statement: ast.ImportFrom) -> str:
        """Write the module that an import names in full."""
        if not statement.level:
            return statement.module or ""
        parts = self.name.split(".")
        kept = len(parts) - statement.level + (1 if self.is_package else 0)
        base = ".".join(parts[: max(kept, 0)])
        return f"{base}.{statement.module}" if statement.module else base

    def _bound(
        self, node: ast.stmt, classes: Mapping[int, ClassDef]
    ) -> Iterator[tuple[str, Meaning]]:
        match node:
            case ast.Import() | ast.ImportFrom():
                yield from self._imported(node)
            case ast.ClassDef(name=name) if id(node) in classes:
                yield name, classes[id(node)]
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name, node
            case ast.Assign(targets=targets, value=value):
                names = (target.id for target in targets if isinstance(target, ast.Name))
                yield from ((name, Assigned(value)) for name in names)
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                yield name, Assigned(value)

    def _imported(self, node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, Import]]:
        for alias in node.names:
            if isinstance(node, ast.ImportFrom):
                yield alias.asname or alias.name, Import(self.absolute(node), alias.name)
            else:
                module = alias.name if alias.asname else alias.name.partition(".")[0]
                yield alias.asname or module, Import(module, None)

    def _classes(
        self,
        body: Sequence[ast.stmt],
        guards: Guards,
        outer: str,
        functions: tuple[Function, ...] = (),
    ) -> Iterator[ClassDef]:
        """List class statements, also in functions and classes."""
        for statement in guarded(body, guards):
            match statement.node:
                case ast.ClassDef(name=name, body=inner) as node:
                    yield ClassDef(self, node, statement.guards, outer, functions)
                    yield from self._classes(inner, statement.guards, f"{outer}{name}.", functions)
                case ast.FunctionDef(name=name, body=inner) as node if self._has_class(node):
                    around = (node, *functions)
                    yield from self._classes(inner, statement.guards, f"{outer}{name}.", around)

    def _has_class(self, node: ast.stmt) -> bool:
        end = node.end_lineno or node.lineno
        return any(node.lineno < line <= end for line in self.class_lines)
