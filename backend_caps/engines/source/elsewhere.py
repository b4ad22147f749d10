"""Where a name is set by anything but a statement of a class body, or of a method on `self`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from backend_caps.engines.source.methods import Methods, pieces
from backend_caps.engines.source.module import (
    ClassDef,
    Function,
    Module,
    alternatives_of,
    assigned,
)
from backend_caps.engines.source.statements import Statement
from backend_caps.engines.source.truth import words

_SETS = frozenset({"setattr", "delattr", "__setattr__", "__delattr__", "__setitem__", "update"})
"""Calls that set what a string, or a keyword, names."""
_SETTERS = (ast.Attribute, ast.Name, ast.Subscript, ast.Call)


@dataclass(frozen=True, slots=True)
class _Write:
    """A place that sets one of the names."""

    name: str
    line: int
    owner: ClassDef | None
    """The class that it stands in."""
    of: str | None
    """The name of what is given it, where that is a name."""


class Elsewhere:
    """Finds such places, file by file."""

    def __init__(self, methods: Methods) -> None:
        self._methods = methods
        self._writes: dict[str, list[_Write]] = {}

    def statements(self, order: tuple[ClassDef, ...], name: str) -> Iterator[Statement]:
        """List what may be set so of a class, by the classes of its order: that it is true."""
        for module in dict.fromkeys(base.module for base in order):
            for write in self._of(module):
                owner = write.name == name and _owner(write, module, order)
                if owner:
                    when = words(f"it is set elsewhere ({module.path}:{write.line})")
                    yield Statement(name, owner, ast.Constant(value=True), (when,), write.line)

    def _of(self, module: Module) -> list[_Write]:
        if module.path not in self._writes:
            self._writes[module.path] = list(self._found(module))
        return self._writes[module.path]

    def _found(self, module: Module) -> Iterator[_Write]:
        lines = self._methods.lines(module, self._methods.names)
        for piece, around in pieces(module.tree, lines):
            inner = next(
                (each for each in reversed(around) if isinstance(each, ast.ClassDef)), None
            )
            owner = None if inner is None else module.definition_of(inner)
            if inner is not None and owner is None:
                continue
            read = _read(piece, owner, around)
            in_class = bool(around) and isinstance(around[-1], ast.ClassDef)
            for node in ast.walk(piece):
                if isinstance(node, _SETTERS) and node not in read:
                    for name, of in self._written(node, in_class=in_class):
                        yield _Write(name, node.lineno, owner, of)

    def _written(self, node: ast.expr, *, in_class: bool) -> Iterator[tuple[str, str | None]]:
        """List the names that a node sets, each with the name of what it is set of."""
        match node:
            case ast.Attribute(attr=name, value=of, ctx=ast.Store() | ast.Del()):
                found = {name}
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()) if in_class:
                found, of = {name}, node
            case ast.Subscript(value=of, slice=ast.Constant(value=str(name)), ctx=ast.Store()):
                found = {name}
            case ast.Call(func=ast.Attribute(attr=called, value=of)) if called in _SETS:
                found = _named(node)
            case ast.Call(func=ast.Name(id=called), args=[of, *_]) if called in _SETS:
                found = _named(node)
            case _:
                return
        yield from ((each, _object(of)) for each in sorted(found & self._methods.names))


def _named(call: ast.Call) -> set[str]:
    """List the strings and the keywords that a call has in it."""
    strings = (n.value for n in ast.walk(call) if isinstance(n, ast.Constant))
    keywords = (keyword.arg for keyword in call.keywords)
    return {each for each in (*strings, *keywords) if isinstance(each, str)}


def _object(node: ast.expr) -> str | None:
    """Name what something is set of: `B` of `B.x` and of `B.__dict__["x"]`."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def _read(
    piece: ast.AST, owner: ClassDef | None, around: tuple[ast.stmt, ...]
) -> frozenset[ast.AST]:
    """List the targets of a statement that the class has it from: its own, or a method's."""
    if owner is None or not isinstance(piece, ast.Assign | ast.AnnAssign | ast.AugAssign):
        return frozenset()
    targets: list[ast.expr]
    if isinstance(piece, ast.AugAssign):
        targets = [piece.target]
    elif piece.value is None:
        targets = [node for node in ast.walk(piece.target) if isinstance(node, ast.expr)]
    else:
        targets = [target for target, _ in assigned(piece)]
    match around:
        case [*_, ast.ClassDef()]:
            return frozenset(each for each in targets if isinstance(each, ast.Name))
        case [*_, ast.ClassDef(), ast.FunctionDef() | ast.AsyncFunctionDef() as function] if (
            _is_method(owner, function)
        ):
            return frozenset(filter(_is_of_self, targets))
    return frozenset()


def _is_method(owner: ClassDef, function: Function) -> bool:
    """Tell whether a function is read as a method; one that is given away is not, as a setter."""
    own = alternatives_of(owner).get(function.name, ())
    return not function.decorator_list or any(function is each for _, each in own)


def _is_of_self(target: ast.expr) -> bool:
    match target:
        case ast.Attribute(value=ast.Name(id="self")):
            return True
    return False


def _owner(write: _Write, module: Module, order: tuple[ClassDef, ...]) -> ClassDef | None:
    """Find the class of an order that a place sets something of; None where it is of others."""
    if write.owner is not None:
        return write.owner if write.owner in order else None
    if any(each.name == write.of for each in module.classes):
        return next((each for each in order if each.name == write.of), None)
    return next(each for each in order if each.module is module)
