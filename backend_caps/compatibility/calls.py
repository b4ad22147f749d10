"""What a plugin calls of an engine."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace

from backend_caps.compatibility.contact import Contact, Verdict
from backend_caps.compatibility.pair import Pair
from backend_caps.compatibility.places import Place
from backend_caps.compatibility.signatures import (
    Arguments,
    Signature,
    is_decorated,
    is_property,
    is_static,
    lengths_of_results,
    signature_of_class,
)
from backend_caps.engines.source.guards import condition
from backend_caps.engines.source.index import FunctionDef, Value
from backend_caps.engines.source.module import ClassDef


def calls(pair: Pair, place: Place) -> Iterator[Contact]:
    """Compare the arguments of a call with the parameters of what it calls."""
    node = place.node
    if not isinstance(node, ast.Call):
        return
    for target in called(pair, node.func, place):
        signature: Signature | None = None
        match target:
            case FunctionDef(node=function, owner=owner):
                if owner is not None and is_property(function):
                    continue
                is_bound = owner is not None and not is_static(function)
                if not is_decorated(function):
                    signature = Signature.of(function, is_bound=is_bound)
                name = function.name if owner is None else f"{owner.name}.{function.name}"
            case ClassDef():
                signature, name = signature_of_class(pair.classes, target), target.name
        arguments, fault = _given(pair, node, place), None
        verdict = Verdict.NOT_CHECKED if signature is None else Verdict.HOLDS
        if signature is not None:
            fault = arguments.fault(signature) or arguments.misplaced(signature)
        yield Contact(
            verdict=verdict if fault is None else Verdict.BREAKS,
            what=f"call of {name}",
            at=place.at,
            why="" if fault is None else f"{name}{signature} {fault}",
            engine_at=target.at,
            given=condition(place.guards),
            bound=() if signature is None else arguments.bound(signature),
        )
        return


def _given(pair: Pair, call: ast.Call, place: Place) -> Arguments:
    """Read what a call gives, and the keys of a mapping that its function writes out."""
    given = Arguments.of(call)
    for keyword in call.keywords:
        match keyword:
            case ast.keyword(arg=None, value=ast.Name(id=name)) if place.functions:
                for _, meaning in pair.scope(place.module, place.functions[0]).get(name, ()):
                    if isinstance(meaning, ast.Dict):
                        keys = [e.value for e in meaning.keys if isinstance(e, ast.Constant)]
                        given = replace(given, names=given.names | set(map(str, keys)))
    return given


def unpackings(pair: Pair, place: Place) -> Iterator[Contact]:
    """Compare how many values a call's result is unpacked into with how many there are."""
    match place.node:
        case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Call() as call):
            pass
        case _:
            return
    if any(isinstance(each, ast.Starred) for each in names):
        return
    for target in called(pair, call.func, place):
        if not isinstance(target, FunctionDef):
            continue
        lengths = lengths_of_results(target.node)
        if lengths and len(names) not in lengths:
            words = " or ".join(map(str, sorted(lengths)))
            yield Contact(
                verdict=Verdict.BREAKS,
                what=f"result of {target.node.name}",
                at=place.at,
                why=f"{target.node.name} returns {words} values; {len(names)} are unpacked",
                engine_at=target.at,
                given=condition(place.guards),
            )
        return


def called(pair: Pair, func: ast.expr, place: Place) -> Iterator[FunctionDef | ClassDef]:
    """List the functions and classes of the engine that a call may be of."""
    owner = class_at(place)
    match func:
        case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name) if owner is not None:
            yield from _method(pair, owner, name)
            return
        case ast.Attribute(value=ast.Call(func=ast.Name(id="super")), attr=name) if owner:
            yield from _method(pair, owner, name, after=owner)
            return
    for target in pair.resolve(func, place):
        match target:
            case FunctionDef() | ClassDef() if pair.is_engines(target.module.path):
                yield target
            case Value(module=module, node=ast.Attribute(value=saved, attr=name) as node) if (
                node is not func
            ):  # an original that the plugin keeps; it gets the instance as an argument
                for owner in pair.resolve(saved, Place(module, node)):
                    if isinstance(owner, ClassDef):
                        for found in _method(pair, owner, name):
                            yield FunctionDef(found.module, found.node)
    if not isinstance(func, ast.Attribute):
        return
    for target in pair.resolve(func.value, place):
        if isinstance(target, ClassDef):
            for found in _method(pair, target, func.attr):
                if is_static(found.node) or "classmethod" in map(
                    ast.unparse, found.node.decorator_list
                ):
                    yield found
    for definition in instances(pair, func.value, place):
        yield from _method(pair, definition, func.attr)


def instances(pair: Pair, node: ast.expr, place: Place) -> Iterator[ClassDef]:
    """List the classes of the engine that a value is an instance of, as annotations state it."""
    match node:
        case ast.Name(id=name):
            for function in place.functions:
                own = function.args
                for each in (*own.posonlyargs, *own.args, *own.kwonlyargs):
                    if each.arg == name:
                        yield from _annotated(pair, each.annotation, place)
                        return
                for _, meaning in pair.scope(place.module, function).get(name, ()):
                    if isinstance(meaning, ast.Call):
                        yield from _made(pair, meaning, place)
                        return
        case ast.Attribute(value=ast.Name(id="self"), attr=name):
            if (owner := class_at(place)) is not None:
                yield from attribute_classes(pair, owner, name)
        case ast.Attribute(value=value, attr=name):
            for definition in instances(pair, value, place):
                yield from attribute_classes(pair, definition, name)


def attribute_classes(pair: Pair, owner: ClassDef, name: str) -> Iterator[ClassDef]:
    """List the classes of an attribute of a class's instances."""
    for base in pair.classes.ancestors(owner):
        around = Place(base.module, base.node, owner=base.node)
        for node in base.node.body:
            match node:
                case ast.AnnAssign(target=ast.Name(id=own)) if own == name:
                    yield from _annotated(pair, node.annotation, around)
                    return
        for function in base.methods.values():
            inner = Place(base.module, function, functions=(function,), owner=base.node)
            for node in ast.walk(function):
                match node:
                    case ast.AnnAssign(
                        target=ast.Attribute(value=ast.Name(id="self"), attr=own)
                    ) if own == name:
                        yield from _annotated(pair, node.annotation, inner)
                        return
                    case ast.Assign(
                        targets=[ast.Attribute(value=ast.Name(id="self"), attr=own)], value=value
                    ) if own == name:
                        if isinstance(value, ast.Call):
                            yield from _made(pair, value, inner)
                        elif isinstance(value, ast.Name | ast.Attribute):
                            yield from instances(pair, value, inner)
                        return


def _made(pair: Pair, call: ast.Call, place: Place) -> Iterator[ClassDef]:
    """List the classes that the result of a call is of: a class, or what a function states."""
    match call.func:
        case ast.Attribute(value=ast.Name(id="self"), attr=name):
            owner = class_at(place)
            definer = None if owner is None else pair.classes.definer(owner, name)
            if definer is not None:
                around = Place(definer.module, call)
                yield from _annotated(pair, definer.methods[name].returns, around)
            return
    for target in pair.resolve(call.func, place):
        if isinstance(target, ClassDef) and pair.is_engines(target.module.path):
            yield target
        elif isinstance(target, FunctionDef):
            around = Place(target.module, target.node)
            yield from _annotated(pair, target.node.returns, around)


def _annotated(pair: Pair, node: ast.expr | None, place: Place) -> Iterator[ClassDef]:
    """List the classes of the engine that an annotation names alone."""
    match node:
        case ast.Constant(value=str(text)):
            try:
                yield from _annotated(pair, ast.parse(text, mode="eval").body, place)
            except SyntaxError:
                return
        case ast.BinOp(op=ast.BitOr(), left=left, right=ast.Constant(value=None)):
            yield from _annotated(pair, left, place)
        case ast.Subscript(value=ast.Name(id="Optional"), slice=inner):
            yield from _annotated(pair, inner, place)
        case ast.Name() | ast.Attribute():
            for target in pair.resolve(node, Place(place.module, node)):
                if isinstance(target, ClassDef) and pair.is_engines(target.module.path):
                    yield target
                    return


def _method(
    pair: Pair, owner: ClassDef, name: str, *, after: ClassDef | None = None
) -> Iterator[FunctionDef]:
    definer = pair.classes.definer(owner, name, after=after)
    if definer is not None and pair.is_engines(definer.module.path):
        yield FunctionDef(definer.module, definer.methods[name], definer)


def class_at(place: Place) -> ClassDef | None:
    """Return the class that `self` is of at a place."""
    if place.owner is None or not place.functions:
        return None
    return place.module.definitions.get(place.owner)
