"""Where a name is set by anything but a statement of a class body, or of a method on `self`."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

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


_Whose = ClassDef | str | None
"""The class that a place stands in; else the name of the class that is given it; or anybody's."""


class Elsewhere:
    """Finds such places, file by file."""

    def __init__(self, methods: Methods) -> None:
        self._methods = methods
        self._places: dict[str, dict[tuple[str, _Whose], int]] = {}

    def statements(self, order: tuple[ClassDef, ...], name: str) -> Iterator[Statement]:
        """List what may be set so of a class, by the classes of its order: that it is true."""
        firsts = {base.module: base for base in reversed(order)}
        for module, first in reversed(firsts.items()):
            places = self._of(module)
            for base in order if places else ():
                asked: tuple[_Whose, ...] = (base, base.name)
                for whose in (*asked, None) if base is first else asked:
                    line = places.get((name, whose))
                    if line is not None:
                        when = words(f"it is set elsewhere ({module.path}:{line})")
                        yield Statement(name, base, ast.Constant(value=True), (when,), line)

    def _of(self, module: Module) -> Mapping[tuple[str, _Whose], int]:
        """List the first line of each that sets a name."""
        if module.path not in self._places:
            found: dict[tuple[str, _Whose], int] = {}
            for name, whose, line in self._found(module):
                found.setdefault((name, whose), line)
            self._places[module.path] = found
        return self._places[module.path]

    def _found(self, module: Module) -> Iterator[tuple[str, _Whose, int]]:
        lines = self._methods.lines(module, self._methods.names)
        classes = {each.name for each in module.classes}
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
                        yield name, owner or (of if of in classes else None), node.lineno

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
