"""What decorators leave of a function: its signature, or nothing that the source tells."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from backend_caps.compatibility.nodes import walk
from backend_caps.compatibility.places import Place
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
        if not any(isinstance(each, FunctionDef) and _is_transparent(each) for each in targets):
            return False
    return True


def _is_transparent(decorator: FunctionDef) -> bool:
    """Return whether a decorator returns its argument, or what takes any arguments.

    The function that it returns may be a decorator, where it takes arguments of its own.
    """
    own = {each.arg for each in decorator.node.args.args}
    inner = [each for each in walk(decorator.node) if isinstance(each, Function)]
    for function in inner:
        own |= {each.arg for each in function.args.args}
    wrappers = {each.name for each in inner[1:] if _takes_all(each)}
    decorators = {each.name for each in inner[1:]}
    results = [
        case.value.id
        for each in inner
        if each.name not in wrappers
        for case in returns(each)
        if isinstance(case.value, ast.Name)
    ]
    return bool(results) and all(each in own | wrappers | decorators for each in results)


def _takes_all(function: Function) -> bool:
    return function.args.vararg is not None and function.args.kwarg is not None
