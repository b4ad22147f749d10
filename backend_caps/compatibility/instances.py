"""The class that a value is an instance of, as annotations, assignments and calls state it."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from backend_caps.compatibility.places import Place
from backend_caps.engines.source.guards import Function
from backend_caps.engines.source.index import FunctionDef
from backend_caps.engines.source.module import ClassDef, Import

if TYPE_CHECKING:
    from backend_caps.compatibility.pair import Pair

_DEEPEST = 6
"""The longest chain of attributes and assignments that is followed."""


@dataclass(frozen=True, slots=True)
class _Statement:
    """What gives an attribute its value."""

    place: Place
    annotation: ast.expr | None
    value: ast.expr | None


_Annotation = tuple[ast.expr | None, Place]


@dataclass
class Instances:
    """Finds the engine's classes of values."""

    pair: Pair
    _given: dict[ClassDef, Mapping[str, _Statement]] = field(default_factory=dict)
    _depth: int = 0

    def classes(self, node: ast.expr, place: Place) -> list[ClassDef]:
        """List the classes that a value may be an instance of; empty where nothing states it."""
        if self._depth > _DEEPEST:
            return []
        self._depth += 1
        try:
            checked = self._checked(node, place)
            return checked or list(dict.fromkeys(self._classes(node, place)))
        finally:
            self._depth -= 1

    def _checked(self, node: ast.expr, place: Place) -> list[ClassDef]:
        """List the classes that a condition around a place, `isinstance`, states of a value."""
        if not place.guards:
            return []
        words, found = ast.unparse(node), []
        tests = [part for guard in place.guards for part in _conjuncts(guard)]
        for test in tests:
            match test:
                case ast.Call(func=ast.Name(id="isinstance"), args=[value, kinds]) if (
                    ast.unparse(value) == words
                ):
                    each = kinds.elts if isinstance(kinds, ast.Tuple) else [kinds]
                    targets = [target for kind in each for target in self.pair.resolve(kind, place)]
                    found += [target for target in targets if isinstance(target, ClassDef)]
        return found

    def _classes(self, node: ast.expr, place: Place) -> Iterator[ClassDef]:
        match node:
            case ast.Name(id="self"):
                if (owner := class_around(place)) is not None:
                    yield owner
            case ast.Name(id=name):
                yield from self._of_name(name, place)
            case ast.Attribute(value=value, attr=name):
                for definition in self.classes(value, place):
                    yield from self.of_attribute(definition, name)
            case ast.Call():
                yield from self._made(node, place)
            case ast.Await(value=value):
                yield from self.classes(value, place)

    def _of_name(self, name: str, place: Place) -> Iterator[ClassDef]:
        for function in place.functions:
            own = function.args
            for each in (*own.posonlyargs, *own.args, *own.kwonlyargs):
                if each.arg == name:
                    yield from self._annotated(each.annotation, place)
                    return
            if name in (scope := self.pair.scope(place.module, function)):
                # Of several assignments each may be the last.
                for _, meaning in scope[name]:
                    if isinstance(meaning, ast.Call | ast.Attribute):
                        yield from self.classes(meaning, place)
                    elif isinstance(meaning, Import):
                        yield from self._imported(meaning)
                return
        for _, meaning in place.module.scope.get(name, ()):
            if isinstance(meaning, Import):
                yield from self._imported(meaning)

    def _imported(self, meaning: Import) -> Iterator[ClassDef]:
        """List the classes that a module annotates a name with, which another one imports."""
        module = self.pair.index.module(meaning.module)
        if module is None:
            return
        for _, node in module.body:
            match node:
                case ast.AnnAssign(target=ast.Name(id=name)) if name == meaning.attribute:
                    yield from self._annotated(node.annotation, Place(module, node))

    def of_attribute(self, owner: ClassDef, name: str) -> list[ClassDef]:
        """List the classes that an attribute of an instance may be an instance of."""
        for base in self.pair.classes.ancestors(owner):
            if (statement := self._statements(base).get(name)) is not None:
                if statement.annotation is not None:
                    return [*self._annotated(statement.annotation, statement.place)]
                if statement.value is not None:
                    return self.classes(statement.value, statement.place)
            method = base.methods.get(name)
            if method is not None:  # a property
                return [*self._annotated(method.returns, Place(base.module, method))]
        return []

    def _statements(self, definition: ClassDef) -> Mapping[str, _Statement]:
        if definition not in self._given:
            found: dict[str, _Statement] = {}
            for name, statement in _statements_of(definition):
                known = found.get(name)
                if known is None or (known.annotation is None and statement.annotation is not None):
                    found[name] = statement
            self._given[definition] = found
        return self._given[definition]

    def _made(self, call: ast.Call, place: Place) -> Iterator[ClassDef]:
        """List the classes of a call's result: the class that is called, or what is annotated."""
        for annotation, around in self._returned(call, place):
            yield from self._annotated(annotation, around)
        targets = self.pair.resolve(call.func, place)
        yield from (each for each in targets if isinstance(each, ClassDef))
        for annotation, around in self._stated(call.func, place):
            yield from self._annotated(_of_type(annotation), around)

    def _returned(self, call: ast.Call, place: Place) -> Iterator[_Annotation]:
        """List the annotations of a call's result."""
        match call.func:
            case ast.Attribute(value=owner, attr=name):
                for definition in self.classes(owner, place):
                    definer = self.pair.classes.definer(definition, name)
                    if definer is not None:
                        yield definer.methods[name].returns, Place(definer.module, call)
        for target in self.pair.resolve(call.func, place):
            if isinstance(target, FunctionDef):
                yield target.node.returns, Place(target.module, target.node)

    def _stated(self, node: ast.expr, place: Place) -> Iterator[_Annotation]:
        """List the annotations of a value: of a parameter, or of the call that gives it."""
        match node:
            case ast.Call():
                yield from self._returned(node, place)
            case ast.Name(id=name) if place.functions:
                own = place.functions[0].args
                for each in (*own.posonlyargs, *own.args, *own.kwonlyargs):
                    if each.arg == name:
                        yield each.annotation, place
                for _, meaning in self.pair.scope(place.module, place.functions[0]).get(name, ()):
                    if isinstance(meaning, ast.Call):
                        yield from self._returned(meaning, place)

    def _annotated(self, node: ast.expr | None, place: Place) -> Iterator[ClassDef]:
        """List the class of the engine that an annotation names alone, None aside."""
        match node:
            case ast.Constant(value=str(text)):
                try:
                    yield from self._annotated(ast.parse(text, mode="eval").body, place)
                except SyntaxError:
                    return
            case ast.BinOp(op=ast.BitOr(), left=left, right=ast.Constant(value=None)):
                yield from self._annotated(left, place)
            case ast.BinOp(op=ast.BitOr(), left=ast.Constant(value=None), right=right):
                yield from self._annotated(right, place)
            case ast.Subscript(value=ast.Name(id="Optional" | "ClassVar" | "Final"), slice=inner):
                yield from self._annotated(inner, place)
            case ast.Name() | ast.Attribute():
                targets = self.pair.resolve(node, Place(place.module, node))
                yield from (each for each in targets if isinstance(each, ClassDef))


def _of_type(annotation: ast.expr | None) -> ast.expr | None:
    """Return what `type[...]` has in it."""
    match annotation:
        case ast.Subscript(value=ast.Name(id="type" | "Type"), slice=inner):
            return inner
    return None


def _conjuncts(test: ast.expr) -> Iterator[ast.expr]:
    """List the conditions that all hold where a condition holds."""
    match test:
        case ast.BoolOp(op=ast.And(), values=values):
            yield from (part for value in values for part in _conjuncts(value))
        case _:
            yield test


def class_around(place: Place) -> ClassDef | None:
    """Return the class that `self` is of at a place."""
    if place.owner is None or not place.functions:
        return None
    return place.module.definitions.get(place.owner)


def _statements_of(definition: ClassDef) -> Iterator[tuple[str, _Statement]]:
    """List what gives instances of a class their attributes, in the order of the text."""
    module, own = definition.module, definition.node
    for node in own.body:
        match node:
            case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation, value=value):
                yield name, _Statement(Place(module, node, owner=own), annotation, value)
    for function in definition.methods.values():
        place = Place(module, function, functions=(function,), owner=own)
        yield from _assignments(function, place)


def _assignments(function: Function, place: Place) -> Iterator[tuple[str, _Statement]]:
    for node in ast.walk(function):
        match node:
            case ast.AnnAssign(
                target=ast.Attribute(value=ast.Name(id="self"), attr=name),
                annotation=annotation,
                value=value,
            ):
                yield name, _Statement(place, annotation, value)
            case ast.Assign(
                targets=[ast.Attribute(value=ast.Name(id="self"), attr=name)], value=value
            ):
                yield name, _Statement(place, None, value)
