"""The conditions of a plugin that an engine's version, or what it has, decides."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from packaging.version import InvalidVersion, Version

from backend_caps.compatibility.places import Place
from backend_caps.engines.source.guards import decided
from backend_caps.engines.source.index import External, FunctionDef, Value
from backend_caps.engines.source.module import ClassDef, Module

if TYPE_CHECKING:
    from backend_caps.compatibility.pair import Pair

_COMPARES_VERSION = re.compile(r"(?:^|_)version_(?:is|eq)$")
"""The end of the name of a function that takes a version and returns whether the engine is it."""
_OPERATORS: dict[type[ast.cmpop], Callable[[Version, Version], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


class Conditions:
    """Decides conditions of a plugin with one engine."""

    def __init__(self, pair: Pair) -> None:
        self._pair = pair

    def truth(self, test: ast.expr, place: Place) -> bool | None:
        """Return whether a condition holds; None where only running code knows."""
        match test:
            case ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING"):
                return False
            case ast.Call(func=ast.Name(id="hasattr"), args=[owner, ast.Constant(value=str(name))]):
                return self._has(owner, name, place)
            case ast.Call(func=func, args=[ast.Constant(value=str(stated))]) if (
                _COMPARES_VERSION.search(ast.unparse(func))
            ):
                return self._compared(ast.Eq(), stated)
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _OPERATORS:
                version = _stated(right)
                if version is not None and self._is_version(left, place):
                    return self._compared(op, version)
            case ast.Name() | ast.Attribute():
                return self._of_value(test, place)
        return None

    def imports_hold(self, body: Sequence[ast.stmt], place: Place) -> bool | None:
        """Return whether every import in a body finds what it names; None if others may fail."""
        found: list[bool | None] = []
        for node in body:
            match node:
                case ast.ImportFrom():
                    source = place.module.absolute(node)
                    found += [self._has_name(source, alias.name) for alias in node.names]
                case ast.Import():
                    found += [self._has_name(alias.name, None) for alias in node.names]
        return False if False in found else (None if None in found or not found else True)

    def _has_name(self, source: str, name: str | None) -> bool | None:
        if source.partition(".")[0] != self._pair.engine:
            return None
        is_there = self._pair.is_module(source)
        return self._pair.has(source, name) if is_there and name not in {None, "*"} else is_there

    def _of_value(self, test: ast.expr, place: Place) -> bool | None:
        """Decide a name whose one value is a condition."""
        match self._pair.resolve(test, place):
            case [Value(module=module, node=ast.Compare() | ast.Call() | ast.BoolOp() as node)]:
                inner = Place(module, node)
                return decided(node, lambda part: self.truth(part, inner))
        return None

    def _compared(self, comparison: ast.cmpop, stated: str) -> bool | None:
        try:
            wanted = Version(stated)
        except InvalidVersion:
            return None
        own = self._pair.version
        return None if own is None else _OPERATORS[type(comparison)](own, wanted)

    def _is_version(self, node: ast.expr, place: Place) -> bool:
        """Return whether an expression is the engine's version."""
        engine, text = self._pair.engine, ast.unparse(node)
        if re.search(rf"\b{engine}\.__version__|version\(['\"]{engine}['\"]\)", text):
            return True
        if isinstance(node, ast.Call) and node.args:
            return self._is_version(node.args[0], place)
        for target in self._pair.resolve(node, place):
            match target:
                case Value(module=module, node=ast.Call() as call) if call is not node:
                    return self._is_version(call, Place(module, call))
                case Module() | FunctionDef() | External():
                    paths = {f"{engine}.__version__", f"{engine}.version"}
                    return isinstance(target, External) and target.path in paths
        return False

    def _has(self, owner: ast.expr, name: str, place: Place) -> bool | None:
        for target in self._pair.resolve(owner, place):
            match target:
                case Module(name=source, path=path) if self._pair.is_engines(path):
                    return self._pair.has(source, name)
                case ClassDef() if self._pair.is_engines(target.module.path):
                    return self._pair.has_member(target, name)
        return None


def _stated(node: ast.expr) -> str | None:
    """Return the version that an expression states: a text, or what is made of one."""
    match node:
        case ast.Constant(value=str(stated)) | ast.Call(args=[ast.Constant(value=str(stated))]):
            return stated
    return None
