"""What a plugin puts in place of an engine's own, so that the engine's own is not met."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from backend_caps.compatibility.nodes import children
from backend_caps.compatibility.places import Place
from backend_caps.engines.source.index import FunctionDef
from backend_caps.engines.source.module import ClassDef, Module

if TYPE_CHECKING:
    from backend_caps.compatibility.pair import Pair
    from backend_caps.compatibility.sites import Site


@dataclass
class Replacements:
    """The functions, methods and classes of an engine that a plugin replaces or adds to."""

    pair: Pair

    @cached_property
    def _names(self) -> frozenset[str]:
        """`module.name` and `package.module.Class.name` of what is assigned."""
        return frozenset(
            f"{owner.name if isinstance(owner, Module) else owner.path}.{name}"
            for module in self.pair.modules()
            for owner, name in self._assigned(module)
        )

    def _assigned(self, module: Module) -> Iterator[tuple[Module | ClassDef, str]]:
        for function, node in _statements(module.tree, ()):
            found = assigned(node)
            if found is not None:
                place = Place(module, node, functions=function)
                for target in self.pair.resolve(found[0], place):
                    if isinstance(target, Module | ClassDef):
                        yield target, found[1]

    def has(self, target: FunctionDef | ClassDef) -> bool:
        """Return whether the plugin assigns something else to a function's or class's name."""
        if isinstance(target, ClassDef):
            return target.path in self._names
        owner = target.module.name if target.owner is None else target.owner.path
        return f"{owner}.{target.node.name}" in self._names

    def covers(self, site: Site) -> bool:
        """Return whether the plugin replaces the function that a call stands in."""
        if not site.functions:
            return False
        owner = None if site.owner is None else site.module.definitions.get(site.owner)
        return self.has(FunctionDef(site.module, site.functions[-1], owner))

    def adds(self, definition: ClassDef, name: str) -> bool:
        """Return whether the plugin assigns an attribute of a class."""
        return f"{definition.path}.{name}" in self._names


def assigned(node: ast.AST) -> tuple[ast.expr, str, ast.expr] | None:
    """Return the owner, the attribute and the value of an assignment to an attribute."""
    match node:
        case ast.Assign(targets=[ast.Attribute(value=owner, attr=name)], value=value):
            return owner, name, value
        case ast.Call(
            func=ast.Name(id="setattr"), args=[owner, ast.Constant(value=str(name)), value]
        ):
            return owner, name, value
    return None


def _statements(
    node: ast.AST, functions: tuple[ast.FunctionDef | ast.AsyncFunctionDef, ...]
) -> Iterator[tuple[tuple[ast.FunctionDef | ast.AsyncFunctionDef, ...], ast.AST]]:
    """List the assignments and calls of a file, each with the functions around it."""
    for child in children(node):
        inner = functions
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            inner = (child, *functions)
        if isinstance(child, ast.Assign | ast.Call):
            yield inner, child
        yield from _statements(child, inner)
