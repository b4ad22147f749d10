"""The class that a value is an instance of, as annotations, assignments and calls state it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from backend_caps.compatibility.bindings import (
    Element,
    Statement,
    element_of,
    elements_named,
    made_by,
    statements_of,
)
from backend_caps.compatibility.decorators import is_property, is_static
from backend_caps.compatibility.nodes import dotted, walk
from backend_caps.compatibility.places import Place
from backend_caps.engines.source.guards import Function, Guards
from backend_caps.engines.source.index import FunctionDef
from backend_caps.engines.source.module import ClassDef, Import, Meanings

if TYPE_CHECKING:
    from backend_caps.compatibility.pair import Pair

_DEEPEST = 30
"""The longest chain of attributes and assignments that is followed."""


_Annotation = tuple[ast.expr | None, Place]


@dataclass
class Instances:
    """Finds the engine's classes of values."""

    pair: Pair
    _given: dict[ClassDef, Mapping[str, Statement]] = field(default_factory=dict)
    _found: dict[tuple[ast.expr | str, tuple[Function, ...]], list[ClassDef]] = field(
        default_factory=dict
    )
    """By the value, or its name in a function, and the functions around it."""
    _contained: dict[tuple[ast.expr, tuple[Function, ...], bool], list[ClassDef]] = field(
        default_factory=dict
    )
    _elements: dict[Function, Mapping[str, Element]] = field(default_factory=dict)
    _checks: dict[Guards, list[tuple[str, ast.expr]]] = field(default_factory=dict)
    _asserts: dict[Function, list[tuple[range, str, ast.expr]]] = field(default_factory=dict)
    _depth: int = 0

    def classes(self, node: ast.expr, place: Place) -> list[ClassDef]:
        """List the classes that a value may be an instance of; empty where nothing states it."""
        if checked := self._checked(node, place):
            return checked
        name = node.id if isinstance(node, ast.Name) and place.functions else node
        key = name, place.functions
        if key not in self._found and self._depth < _DEEPEST:
            self._found[key] = []  # while it is followed: a name may be assigned from itself
            self._depth += 1
            self._found[key] = list(dict.fromkeys(self._classes(node, place)))
            self._depth -= 1
        return self._found.get(key, [])

    def _checked(self, node: ast.expr, place: Place) -> list[ClassDef]:
        """List the classes that `isinstance` states of a value, around a place or before it."""
        tests = [*self._checks_of(place.guards)] if place.guards else []
        asserted = self._asserts_of(place.functions[0]) if place.functions else ()
        name = dotted(node) if tests or asserted else None
        if name is None:
            return []
        stated = [kinds for value, kinds in tests if value == name]
        before = [
            kinds for lines, value, kinds in asserted if value == name and node.lineno in lines
        ]
        found: list[ClassDef] = []
        for kinds in stated or before[-1:]:
            each = kinds.elts if isinstance(kinds, ast.Tuple) else [kinds]
            targets = [target for kind in each for target in self.pair.resolve(kind, place)]
            found += [target for target in targets if isinstance(target, ClassDef)]
        return found

    def _checks_of(self, guards: Guards) -> list[tuple[str, ast.expr]]:
        """List the names that conditions check by `isinstance`, each with the classes."""
        if guards not in self._checks:
            self._checks[guards] = _checked_in(guards)
        return self._checks[guards]

    def _asserts_of(self, function: Function) -> list[tuple[range, str, ast.expr]]:
        """List the names that a function asserts to be instances, each with the classes.

        An assertion holds for the lines after it, as far as the block goes that it stands in.
        """
        if function not in self._asserts:
            self._asserts[function] = [
                (range(each.lineno + 1, (block[-1].end_lineno or 0) + 1), name, kinds)
                for block in _blocks(function)
                for each in block
                if isinstance(each, ast.Assert)
                for name, kinds in _checked_in([each.test])
            ]
        return self._asserts[function]

    def _classes(self, node: ast.expr, place: Place) -> Iterator[ClassDef]:
        match node:
            case ast.Name(id="self"):
                if (owner := class_around(place)) is not None:
                    yield owner
            case ast.Name(id=name):
                # What a name means is kept for all its places, whatever their conditions.
                around = Place(place.module, node, functions=place.functions, owner=place.owner)
                yield from self._of_variable(name, around)
            case ast.Attribute(value=value, attr=name):
                for definition in self.classes(value, place):
                    yield from self.of_attribute(definition, name)
            case ast.Call():
                yield from self._made(node, place)
            case ast.Await(value=value):
                yield from self.classes(value, place)
            case ast.Subscript(value=value):
                yield from self.elements(value, place, is_value=True)

    def _of_variable(self, name: str, place: Place) -> Iterator[ClassDef]:
        for each in self._loops(name, place):
            yield from self.elements(each.of, place, is_value=each.is_value)
        for statement in self._of_name(name, place):
            yield from self._of_statement(statement)

    def elements(self, node: ast.expr, place: Place, *, is_value: bool) -> list[ClassDef]:
        """List the classes of what a container has.

        Args:
            node: a list, a tuple, a mapping or something else that is iterated over.
            place: where.
            is_value: whether a mapping's values are meant; its keys otherwise.
        """
        key = node, place.functions, is_value
        if key not in self._contained and self._depth < _DEEPEST:
            self._contained[key] = []
            self._depth += 1
            self._contained[key] = list(dict.fromkeys(self._inside(node, place, is_value)))
            self._depth -= 1
        return self._contained.get(key, [])

    def _inside(self, node: ast.expr, place: Place, is_value: bool) -> Iterator[ClassDef]:
        match node:
            case ast.List(elts=values) | ast.Tuple(elts=values) | ast.Set(elts=values):
                yield from (found for each in values for found in self.classes(each, place))
            case ast.ListComp(elt=value) | ast.GeneratorExp(elt=value) | ast.SetComp(elt=value):
                yield from self.classes(value, place)
            case ast.Call(func=ast.Name(id="list" | "tuple" | "set" | "sorted"), args=[inner, *_]):
                yield from self.elements(inner, place, is_value=is_value)
            case ast.Call(func=ast.Attribute(value=inner, attr="values"), args=[]):
                yield from self.elements(inner, place, is_value=True)
            case ast.Name(id=name):
                for statement in self._of_name(name, place):
                    yield from self._elements_of(statement, is_value=is_value)
            case ast.Attribute(value=value, attr=name):
                for definition in self.classes(value, place):
                    for statement in self._of_member(definition, name):
                        yield from self._elements_of(statement, is_value=is_value)

    def _loops(self, name: str, place: Place) -> list[Element]:
        """List what a name stands for an element of, in a loop or a comprehension."""
        for function in place.functions:
            if function not in self._elements:
                self._elements[function] = elements_named(function)
            if name in self._elements[function]:
                return [self._elements[function][name]]
        return []

    def _of_name(self, name: str, place: Place) -> Iterator[Statement]:
        """List what gives a name its value in a function."""
        for function in place.functions:
            own = function.args
            for each in (*own.posonlyargs, *own.args, *own.kwonlyargs):
                if each.arg == name and each.annotation is not None:
                    yield Statement(place, each.annotation, None)
                    return
                if each.arg == name:
                    yield from self._of_parameter(name, function, place)
                    return
            if name in (scope := self.pair.scope(place.module, function)):
                yield from self._of_scope(scope[name], place)
                return
        yield from self._of_scope(place.module.scope.get(name, ()), Place(place.module, place.node))

    def _of_scope(self, meanings: Meanings, place: Place) -> Iterator[Statement]:
        """List what gives a name its value: of several assignments each may be the last."""
        for _, meaning in meanings:
            if isinstance(meaning, ast.expr):
                yield Statement(place, None, meaning)
            elif isinstance(meaning, Import):
                yield from self._imported(meaning)

    def _imported(self, meaning: Import) -> Iterator[Statement]:
        """List what a module annotates a name with, which another one imports."""
        module = self.pair.index.module(meaning.module)
        if module is None:
            return
        for _, node in module.body:
            match node:
                case ast.AnnAssign(target=ast.Name(id=name)) if name == meaning.attribute:
                    yield Statement(Place(module, node), node.annotation, None)

    def _of_parameter(self, name: str, function: Function, place: Place) -> Iterator[Statement]:
        """List what a parameter of a method without an annotation is, by its base or its calls."""
        owner = class_around(place)
        if owner is None or owner.methods.get(function.name) is not function:
            return
        base = self.pair.classes.definer(owner, function.name, after=owner)
        if base is not None:
            arguments = base.methods[function.name].args
            for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
                if each.arg == name and each.annotation is not None:
                    around = Place(base.module, base.methods[function.name])
                    yield Statement(around, each.annotation, None)
                    return
        names = [each.arg for each in function.args.args[not is_static(function) :]]
        at = names.index(name) if name in names else None
        for site in self.pair.sites_in(place.module.path).get(function.name, ()):
            if site.owner is not owner.node or site.receiver != "self":
                continue
            given = {each.arg: each.value for each in site.call.keywords}
            positional = site.call.args
            if (value := given.get(name)) is not None:
                yield Statement(site.place, None, value)
            elif at is not None and not any(
                isinstance(each, ast.Starred) for each in positional[: at + 1]
            ):
                yield from (Statement(site.place, None, each) for each in positional[at : at + 1])

    def of_attribute(self, owner: ClassDef, name: str) -> list[ClassDef]:
        """List the classes that an attribute of an instance may be an instance of."""
        members = self._of_member(owner, name)
        return [each for statement in members for each in self._of_statement(statement)]

    def _of_member(self, owner: ClassDef, name: str) -> Iterator[Statement]:
        """List what gives an attribute of an instance its value, as the nearest class states it."""
        for base in self.pair.classes.ancestors(owner):
            if (statement := self._statements(base).get(name)) is not None:
                yield statement
                return
            method = base.methods.get(name)
            if method is not None:
                if is_property(method):
                    yield Statement(Place(base.module, method), method.returns, None)
                return

    def _of_statement(self, statement: Statement) -> Iterator[ClassDef]:
        if statement.annotation is not None:
            yield from self._annotated(statement.annotation, statement.place)
        elif statement.value is not None:
            yield from self.classes(statement.value, statement.place)

    def _elements_of(self, statement: Statement, *, is_value: bool) -> Iterator[ClassDef]:
        if statement.annotation is not None:
            for each in element_of(statement.annotation, is_value=is_value):
                yield from self._annotated(each, statement.place)
        elif statement.value is not None:
            yield from self.elements(statement.value, statement.place, is_value=is_value)

    def _statements(self, definition: ClassDef) -> Mapping[str, Statement]:
        if definition not in self._given:
            found: dict[str, Statement] = {}
            for name, statement in statements_of(definition):
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
            yield from self._annotated(made_by(annotation), around)

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


def _blocks(function: Function) -> Iterator[list[ast.stmt]]:
    """List the blocks of statements in a function, the outer ones first."""
    for node in walk(function):
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list):
                yield block


def _checked_in(tests: Iterable[ast.expr]) -> list[tuple[str, ast.expr]]:
    """List the names that conditions check by `isinstance`, each with the classes."""
    found: list[tuple[str, ast.expr]] = []
    for test in (part for each in tests for part in _conjuncts(each)):
        match test:
            case ast.Call(func=ast.Name(id="isinstance"), args=[value, kinds]) if name := dotted(
                value
            ):
                found.append((name, kinds))
    return found


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
