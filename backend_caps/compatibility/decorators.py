"""What decorators leave of a function: its signature, or nothing that the source tells."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from backend_caps.compatibility.places import Place
from backend_caps.compatibility.signatures import inner_nodes
from backend_caps.engines.source.guards import Function, returns
from backend_caps.engines.source.index import FunctionDef

if TYPE_CHECKING:
    from backend_caps.compatibility.pair import Pair

_PROPERTIES = frozenset(
    {"property", "cached_property", "abstractproperty", "setter", "getter", "classproperty"}
)
_TRANSPARENT = frozenset(
    {"staticmethod", "classmethod", "abstractmethod", "abstractclassmethod", "override", "final"}
    | {"overload", "wraps", "contextmanager", "asynccontextmanager", "lru_cache", "cache"}
    | {"inference_mode", "no_grad", "compile", "disable", "deprecated", "custom_op"}
)
"""Last names of decorators of the standard library and of torch that keep a signature."""


def names_of(function: Function | ast.ClassDef) -> Iterator[str]:
    """List the last names of a function's decorators."""
    for node in function.decorator_list:
        called = node.func if isinstance(node, ast.Call) else node
        yield ast.unparse(called).rpartition(".")[2]


def is_static(function: Function) -> bool:
    """Return whether a method gets no instance and no class."""
    return "staticmethod" in names_of(function)


def is_of_class(function: Function) -> bool:
    """Return whether a method can be called of the class itself, without an instance."""
    return bool({"staticmethod", "classmethod", "abstractclassmethod"} & {*names_of(function)})


def is_property(function: Function) -> bool:
    """Return whether a method is read as an attribute."""
    return not _PROPERTIES.isdisjoint(names_of(function))


def keeps_signature(pair: Pair, function: FunctionDef) -> bool:
    """Return whether a function is called with the parameters in its text."""
    for node, name in zip(function.node.decorator_list, names_of(function.node), strict=True):
        called = node.func if isinstance(node, ast.Call) else node
        if name in _TRANSPARENT | _PROPERTIES:
            continue
        targets = pair.resolve(called, Place(function.module, node))
        functions = [each.node for each in targets if isinstance(each, FunctionDef)]
        if not any(map(_is_transparent, functions)):
            return False
    return True


def _is_transparent(decorator: Function) -> bool:
    """Return whether a decorator returns its argument, or a function that takes any arguments.

    The function that it returns may be a decorator, where it takes arguments of its own.
    """
    kept = {each.arg for each in ast.walk(decorator.args) if isinstance(each, ast.arg)}
    for each in inner_nodes(decorator):
        if isinstance(each, Function) and (_takes_all(each) or _is_transparent(each)):
            kept.add(each.name)
    results = {_name(case.value) for case in returns(decorator)} - {None}
    return bool(results) and results <= kept


def _name(value: ast.expr) -> str | None:
    """Return the name that a decorator returns; None for another expression."""
    match value:
        case ast.Name(id=name) | ast.Call(func=ast.Name(id="cast"), args=[_, ast.Name(id=name)]):
            return name
    return None


def _takes_all(function: Function) -> bool:
    return function.args.vararg is not None and function.args.kwarg is not None
