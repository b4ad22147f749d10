"""The conditions of a plugin that an engine's version, or what it has, decides."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from packaging.version import InvalidVersion, Version

from backend_caps.compatibility.places import Place
from backend_caps.engines.source.guards import decided
from backend_caps.engines.source.index import External, Target, Value
from backend_caps.engines.source.module import ClassDef, Module

if TYPE_CHECKING:
    from backend_caps.compatibility.pair import Pair

_PARSING = frozenset({"Version", "LooseVersion", "parse", "parse_version", "str"})
"""Last names of functions that take a version and return it."""
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
        self._open: set[ast.expr] = set()
        """The values that are being followed, for one may name itself."""
        self._compares_version = re.compile(rf"(?:^|\.|{pair.engine}_)_?version_(?:is|eq)$")
        """The names of functions that return whether the engine has the version that they take."""

    def truth(self, test: ast.expr, place: Place) -> bool | None:
        """Return whether a condition holds; None where only running code knows."""
        match test:
            case ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING"):
                return False
            case ast.Call(func=ast.Name(id="hasattr"), args=[owner, ast.Constant(value=str(name))]):
                return self._has(owner, name, place)
            case ast.Call(func=func, args=[ast.Constant(value=str(stated))]) if (
                self._compares_version.search(ast.unparse(func))
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
            case [Value(node=ast.Compare() | ast.Call() | ast.BoolOp() | ast.UnaryOp()) as value]:
                return self._followed(value, place, self._decided)
        return None

    def _decided(self, node: ast.expr, place: Place) -> bool | None:
        return decided(node, lambda part: self.truth(part, place))

    def _followed(
        self, value: Value, place: Place, look: Callable[[ast.expr, Place], bool | None]
    ) -> bool | None:
        """Look at the value of a name, where it is assigned; None if that is being done."""
        node, module = value.node, value.module
        if node in self._open:
            return None
        inner = replace(place, node=node) if module is place.module else Place(module, node)
        self._open.add(node)
        found = look(node, inner)
        self._open.discard(node)
        return found

    def _compared(self, comparison: ast.cmpop, stated: str) -> bool | None:
        try:
            wanted = Version(stated)
        except InvalidVersion:
            return None
        own = self._pair.version
        return None if own is None else _OPERATORS[type(comparison)](own, wanted)

    def _is_version(self, node: ast.expr, place: Place) -> bool:
        """Return whether an expression is the engine's version, as a text or parsed."""
        match node:
            case ast.Attribute(value=ast.Name(id=self._pair.engine), attr="__version__"):
                return True  # whose import may be one of another module
            case ast.Call(func=func, args=[ast.Constant(value=name)]):
                return name == self._pair.engine and _last_name(func) == "version"
            case ast.Call(func=func, args=[inner]) if _last_name(func) in _PARSING:
                return self._is_version(inner, place)
            case ast.Attribute(value=inner, attr="base_version" | "public"):
                return self._is_version(inner, place)
            case ast.Subscript(
                value=ast.Call(
                    func=ast.Attribute(value=inner, attr="split"), args=[ast.Constant(value="+")]
                )
            ):
                return self._is_version(inner, place)
        found = [self._states_version(each, place) for each in self._pair.resolve(node, place)]
        return True in found and False not in found

    def _states_version(self, target: Target, place: Place) -> bool | None:
        """Return whether one meaning of a name is the version; None if that is being asked."""
        match target:
            case External(path=path):
                return path.startswith(f"{self._pair.engine}.") and path.endswith(".__version__")
            case Value(module=module, node=ast.Constant()):
                return self._pair.is_engines(module.path) and module.path.endswith("version.py")
            case Value(node=ast.Call()):
                return self._followed(target, place, self._is_version)
        return False

    def _has(self, owner: ast.expr, name: str, place: Place) -> bool | None:
        for target in self._pair.resolve(owner, place):
            match target:
                case Module(name=source, path=path) if self._pair.is_engines(path):
                    return self._pair.has(source, name)
                case ClassDef() if self._pair.is_engines(target.module.path):
                    return self._pair.has_member(target, name)
        return None


def _last_name(node: ast.expr) -> str:
    return ast.unparse(node).rpartition(".")[2]


def _stated(node: ast.expr) -> str | None:
    """Return the version that an expression states: a text, or what is made of one."""
    match node:
        case ast.Constant(value=str(stated)) | ast.Call(args=[ast.Constant(value=str(stated))]):
            return stated
    return None
