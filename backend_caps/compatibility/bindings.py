"""What gives names and attributes their values, in the text of functions and classes."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from backend_caps.compatibility.nodes import walk
from backend_caps.compatibility.places import Place
from backend_caps.engines.source.guards import Function
from backend_caps.engines.source.module import ClassDef

_SEQUENCES = frozenset(
    {"list", "List", "tuple", "Tuple", "set", "Set", "frozenset", "FrozenSet", "deque"}
    | {"Sequence", "MutableSequence", "Iterable", "Iterator", "Collection", "Generator"}
)
_MAPPINGS = frozenset(
    {"dict", "Dict", "Mapping", "MutableMapping", "defaultdict", "DefaultDict", "OrderedDict"}
)


@dataclass(frozen=True, slots=True)
class Statement:
    """What gives a name or an attribute its value."""

    place: Place
    annotation: ast.expr | None
    value: ast.expr | None


class Element(NamedTuple):
    """A loop's variable."""

    of: ast.expr
    """What is iterated over."""
    is_value: bool
    """Whether it is a value of a mapping, and no key."""


def statements_of(definition: ClassDef) -> Iterator[tuple[str, Statement]]:
    """List what gives instances of a class their attributes, in the order of the text."""
    module, own = definition.module, definition.node
    for node in own.body:
        match node:
            case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation, value=value):
                yield name, Statement(Place(module, node, owner=own), annotation, value)
    for function in definition.methods.values():
        place = Place(module, function, functions=(function,), owner=own)
        yield from _assignments(function, place)


def _assignments(function: Function, place: Place) -> Iterator[tuple[str, Statement]]:
    for node in walk(function):
        match node:
            case ast.AnnAssign(
                target=ast.Attribute(value=ast.Name(id="self"), attr=name),
                annotation=annotation,
                value=value,
            ):
                yield name, Statement(place, annotation, value)
            case ast.Assign(
                targets=[ast.Attribute(value=ast.Name(id="self"), attr=name)], value=value
            ):
                yield name, Statement(place, None, value)


def elements_named(function: Function) -> Mapping[str, Element]:
    """Return what the variables of a function's loops and comprehensions are elements of."""
    found: dict[str, Element] = {}
    for node in walk(function):
        match node:
            case ast.For() | ast.AsyncFor() | ast.comprehension():
                found |= _bound(node.target, node.iter)
    return found


def _bound(target: ast.expr, iterable: ast.expr) -> Iterator[tuple[str, Element]]:
    match target, iterable:
        case ast.Name(id=name), _:
            yield name, Element(iterable, is_value=False)
        case ast.Tuple(elts=[_, inner]), ast.Call(func=ast.Name(id="enumerate"), args=[each, *_]):
            yield from _bound(inner, each)
        case (
            ast.Tuple(elts=[_, ast.Name(id=name)]),
            ast.Call(func=ast.Attribute(value=mapping, attr="items"), args=[]),
        ):
            yield name, Element(mapping, is_value=True)
        case ast.Tuple(elts=targets), ast.Call(func=ast.Name(id="zip"), args=iterables):
            for one, each in zip(targets, iterables, strict=False):
                yield from _bound(one, each)


def element_of(annotation: ast.expr, *, is_value: bool) -> Iterator[ast.expr]:
    """List the annotations of what a container has; of a mapping, its values or its keys."""
    match annotation:
        case ast.Constant(value=str(text)):
            try:
                yield from element_of(ast.parse(text, mode="eval").body, is_value=is_value)
            except SyntaxError:
                return
        case ast.BinOp(op=ast.BitOr(), left=left, right=right):
            yield from element_of(left, is_value=is_value)
            yield from element_of(right, is_value=is_value)
        case ast.Subscript(value=container, slice=inner):
            name = ast.unparse(container).rpartition(".")[2]
            parts = inner.elts if isinstance(inner, ast.Tuple) else [inner]
            if name in _SEQUENCES:
                yield from parts
            elif name in _MAPPINGS:
                yield parts[-1 if is_value else 0]
            elif name == "Optional":
                yield from element_of(inner, is_value=is_value)


def made_by(annotation: ast.expr | None) -> ast.expr | None:
    """Return the annotation of what a class makes that is annotated as `type[...]`."""
    match annotation:
        case ast.Subscript(value=ast.Name(id="type" | "Type"), slice=inner):
            return inner
    return None
