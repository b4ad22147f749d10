"""Where SGLang registers names for attention backends, and when each registration runs."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace

from backend_caps.engines import problems
from backend_caps.engines.source.guards import Guards, guarded
from backend_caps.engines.source.index import FunctionDef, Index
from backend_caps.engines.source.module import Function
from backend_caps.engines.source.truth import words

_REGISTER = "register_attention_backend"


@dataclass(frozen=True, slots=True)
class Registration:
    """A function that makes what one name stands for."""

    name: str
    function: FunctionDef
    guards: Guards
    """When it is registered."""
    is_replaced: bool
    """Whether another decorator makes something of the function before it is registered."""


def read_registrations(index: Index) -> dict[str, list[Registration]]:
    """List the registrations of each name: which one runs last is for none to say."""
    found: dict[str, list[Registration]] = {}
    for each in _registrations(index):
        found.setdefault(each.name, []).append(each)
    return {name: _told(index, name, own) for name, own in found.items()}


def is_usable(index: Index, name: str, at: str) -> bool:
    """Tell whether a name can be printed and typed; one that cannot is a problem."""
    is_plain = name.isprintable() and name == name.strip() != ""
    if not is_plain:
        index.tell(problems.name_unusable("sglang", name, at))
    return is_plain


def _told(index: Index, name: str, own: list[Registration]) -> list[Registration]:
    """Leave open which file registers a name last, where several do."""
    if len({each.function.module.path for each in own}) == 1:
        return own
    places = [each.function.at for each in own]
    index.tell(problems.registered_twice("sglang", name, places))
    return [
        replace(each, guards=(*each.guards, words(f"{each.function.at} is the one that counts")))
        for each in own
    ]


def _registrations(index: Index) -> Iterator[Registration]:
    for path in index.containing(_REGISTER.encode()):
        module = index.parse(path)
        for statement in guarded(module.tree.body) if module else ():
            if module is not None and isinstance(statement.node, Function):
                function = FunctionDef(module, statement.node)
                for name, is_replaced in _registered(statement.node):
                    if is_usable(index, name, function.at):
                        yield Registration(name, function, statement.guards, is_replaced)


def _registered(function: Function) -> Iterator[tuple[str, bool]]:
    """List the names that decorators register; those that stand below one run before it."""
    is_replaced = False
    for decorator in reversed(function.decorator_list):
        match decorator:
            case ast.Call(func=ast.Name(id=called) | ast.Attribute(attr=called)) if (
                called == _REGISTER
            ):
                match decorator.args:
                    case [ast.Constant(value=str(name))]:
                        yield name, is_replaced
            case _:
                is_replaced = True
