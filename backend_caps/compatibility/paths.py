"""Classes that a plugin names by a path in a text, for the engine to import."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace

from backend_caps.compatibility.contact import Contact, ContactKind, Verdict
from backend_caps.compatibility.names import is_built
from backend_caps.compatibility.pair import Pair
from backend_caps.compatibility.places import Place
from backend_caps.engines.source.guards import branches, condition

_OF_CLASS = re.compile(r"[a-z_]\w*(?:\.[a-z_]\w*)+\.[A-Z]\w*")
"""`package.module.Class`."""
_NO_IMPORTS = re.compile(r"(?i)log")
"""In the name of a function whose text names a logger."""


def class_paths(pair: Pair, place: Place) -> Iterator[Contact]:
    """Look for the classes whose paths are returned, assigned or given to a call."""
    for value in filter(None, _values(place.node)):
        for guards, node in branches(value, place.guards):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                path = node.value.replace(":", ".")
                is_path = _OF_CLASS.fullmatch(path) and _is_known(pair, path)
                if is_path and pair.may_hold(guards, place):
                    yield _checked(pair, replace(place, guards=guards), node, path)


def _values(node: ast.AST) -> Iterator[ast.expr | None]:
    match node:
        case ast.Return(value=value) | ast.Assign(value=value) | ast.AnnAssign(value=value):
            yield value
        case ast.Dict(values=values):
            yield from values
        case ast.Call(func=func, args=arguments, keywords=keywords) if not _NO_IMPORTS.search(
            ast.unparse(func)
        ):
            yield from arguments
            yield from (each.value for each in keywords)


def _is_known(pair: Pair, path: str) -> bool:
    """Return whether a path begins with a package whose files are all here."""
    packages = pair.plugin.packages
    return path.partition(".")[0] in {pair.engine, *packages}


def _checked(pair: Pair, place: Place, node: ast.Constant, path: str) -> Contact:
    module, _, name = path.rpartition(".")
    is_there: bool | None = pair.is_module(module)
    if is_there:
        is_there = pair.has(module, name)
    if is_there is False and (is_built(path) or _is_inner(pair, module)):
        is_there = None
    whys = {True: "", False: f"{path} is not there", None: "only running code knows it"}
    verdict = Verdict.of(is_there)
    if verdict is Verdict.BREAKS and place.owner is not None and not place.functions:
        verdict = Verdict.CHANGED  # of a class body, as an enum: one may never be chosen
    return Contact(
        kind=ContactKind.IMPORT,
        verdict=verdict,
        what=path,
        at=place.module.at(node),
        why=whys[is_there],
        given=condition(place.guards),
    )


def _is_inner(pair: Pair, path: str) -> bool:
    """Return whether a path ends in a name of a module, and not in a module."""
    module, _, name = path.rpartition(".")
    return not pair.is_module(path) and pair.has(module, name) is not False
