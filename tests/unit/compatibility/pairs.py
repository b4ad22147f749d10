"""Pairs of a small plugin and a small engine, written out of texts."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from textwrap import dedent

from backend_caps.compatibility.pair import Pair
from backend_caps.compatibility.places import Place
from backend_caps.compatibility.plugin import EntryPoint, Plugin
from backend_caps.compatibility.sources import open_pair
from backend_caps.engines.source.files import Tree
from backend_caps.engines.source.guards import Function
from backend_caps.engines.source.index import FunctionDef
from backend_caps.engines.source.module import ClassDef, Module
from tests.unit.engines.source.trees import bytes_of

ENGINE = "engine"
PLUGIN = "plugin"


def pair_of(
    engine: Mapping[str, str | bytes],
    plugin: Mapping[str, str | bytes] | None = None,
    *,
    version: str | None = "1.0",
    entry_points: Sequence[str] = (),
    group: str = "engine.plugins",
) -> Pair:
    """Put a plugin beside an engine: the text of each by module, as `a.b` of `engine/a/b.py`.

    Both have an empty `__init__` where none is given.
    """
    tree = Tree(package=ENGINE, version=version, source="here", files=_files(ENGINE, engine))
    points = (
        EntryPoint(group=group, name=each, value=each, at="pyproject.toml:1")
        for each in entry_points
    )
    opened = Plugin(
        name=PLUGIN, version=None, files=_files(PLUGIN, plugin or {}), entry_points=tuple(points)
    )
    return open_pair(opened, tree)


def _files(package: str, texts: Mapping[str, str | bytes]) -> dict[str, bytes]:
    return {
        f"{package}/{name.replace('.', '/')}.py": bytes_of(text)
        for name, text in {"__init__": "", **texts}.items()
    }


def module_of(pair: Pair, name: str = "plugin.m") -> Module:
    """Parse a module, which can be."""
    module = pair.index.module(name)
    assert module is not None, pair.index.problems
    return module


def class_of(pair: Pair, name: str, module: str = "plugin.m") -> ClassDef:
    """Find the last class of a name in a module."""
    return [each for each in module_of(pair, module).classes if each.name == name][-1]


def function_of(pair: Pair, name: str, module: str = "plugin.m") -> FunctionDef:
    """Find a function of a module."""
    own = module_of(pair, module)
    return next(
        FunctionDef(own, node)
        for node in own.tree.body
        if isinstance(node, Function) and node.name == name
    )


def place_of(pair: Pair, text: str, module: str = "plugin.m") -> tuple[ast.expr, Place]:
    """Put an expression at the end of a module."""
    node = expression(text)
    return node, Place(module_of(pair, module), node)


def expression(text: str) -> ast.expr:
    """Parse an expression."""
    return ast.parse(text, mode="eval").body


def function(text: str) -> Function:
    """Parse a text with one function in it."""
    [node] = ast.parse(dedent(text)).body
    assert isinstance(node, Function), text
    return node
