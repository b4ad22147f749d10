"""Where an attribute of a module is written."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator, Sequence
from types import ModuleType

_SCOPES = (
    ast.AsyncFunctionDef,
    ast.ClassDef,
    ast.DictComp,
    ast.FunctionDef,
    ast.GeneratorExp,
    ast.Lambda,
    ast.ListComp,
    ast.SetComp,
)


def source_line(module: ModuleType, attribute: str) -> str | None:
    """Return `file:line` of a module's attribute, from its source.

    Just the file where the source is not there or does not say; None for a module without a
    file. An attribute of a class is found in the class.
    """
    file = vars(module).get("__file__")
    if not isinstance(file, str):
        return None
    source = "".join(linecache.getlines(file, vars(module)))
    line = _line_of(ast.parse(source), attribute.split("."))
    return file if line is None else f"{file}:{line}"


def _line_of(scope: ast.AST, names: Sequence[str]) -> int | None:
    """Find the last binding of the first name, and within it that of the rest."""
    bindings = [(line, node) for node, name, line in _bindings(scope) if name == names[0]]
    if not bindings:
        return None
    line, last = bindings[-1]
    within = _line_of(last, names[1:]) if names[1:] else None
    return within or line


def _bindings(scope: ast.AST) -> Iterator[tuple[ast.AST, str, int]]:
    """List what a scope binds, without what the scopes inside bind."""
    for node in ast.iter_child_nodes(scope):
        match node:
            case ast.Name(id=name, ctx=ast.Store(), lineno=line):
                yield node, name, line
            case ast.ClassDef(name=name, lineno=line) | ast.FunctionDef(name=name, lineno=line):
                yield node, name, line
            case ast.alias(name=name, asname=renamed, lineno=line):
                yield node, renamed or name, line
        if not isinstance(node, _SCOPES):
            yield from _bindings(node)
