"""The classes of a plugin that something may make instances of, by their names."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from backend_caps.compatibility.nodes import walk
from backend_caps.engines.source.module import Module


def mentioned(modules: Iterable[Module]) -> frozenset[str]:
    """List the names that are called, given, returned or decorated, or end a path in a text.

    A class of which attributes alone are read holds functions for others, and has no instances.
    """
    return frozenset(name for module in modules for name in _names(module))


def _names(module: Module) -> Iterator[str]:
    passed_by = {id(part) for node in walk(module.tree) for part in _without_value(node)}
    for node in walk(module.tree):
        if id(node) in passed_by:
            continue
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) if isinstance(node.ctx, ast.Load):
                yield name
            case ast.Constant(value=str(text)) if "." in text:
                yield text.replace(":", ".").rpartition(".")[2]
            case ast.ClassDef(name=name, decorator_list=[_, *_]):
                yield name


def _without_value(node: ast.AST) -> Iterator[ast.AST]:
    """List the parts of a node that use no class: the owner of an attribute, and annotations."""
    match node:
        case ast.Attribute(value=value):
            yield value
        case ast.AnnAssign(annotation=annotation):
            yield from walk(annotation)
        case ast.arg(annotation=ast.expr() as annotation):
            yield from walk(annotation)
        case ast.FunctionDef(returns=ast.expr() as annotation):
            yield from walk(annotation)
        case ast.AsyncFunctionDef(returns=ast.expr() as annotation):
            yield from walk(annotation)
