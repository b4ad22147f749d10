"""What a plugin calls of an engine, and what it makes of the results."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace

from backend_caps.compatibility.constructors import constructor_of, is_dataclass
from backend_caps.compatibility.contact import Contact, ContactKind, Form, Verdict
from backend_caps.compatibility.decorators import (
    is_of_class,
    is_property,
    is_static,
    keeps_signature,
)
from backend_caps.compatibility.instances import class_around
from backend_caps.compatibility.pair import Pair
from backend_caps.compatibility.places import Place
from backend_caps.compatibility.signatures import Arguments, Signature, brief, result_lengths
from backend_caps.engines.source.guards import condition
from backend_caps.engines.source.index import FunctionDef, Value
from backend_caps.engines.source.module import ClassDef


def calls(pair: Pair, place: Place) -> Iterator[Contact]:
    """Compare the arguments of a call with the parameters of what it calls."""
    node = place.node
    if not isinstance(node, ast.Call):
        return
    for target in called(pair, node.func, place):
        if pair.replacements.has(target):
            return
        signature = _signature(pair, target)
        arguments, name = _arguments(pair, node, place), _name(target)
        is_taken: bool | None = None
        why = "only running code knows its parameters"
        if signature is not None:
            is_taken, why = _taken(pair, target, signature, arguments)
        yield Contact(
            kind=ContactKind.CALL,
            verdict=Verdict.of(is_taken),
            what=name,
            at=place.at,
            why=why,
            engine_at=pair.engine_at(target),
            given=condition(place.guards),
            parameters=() if signature is None else arguments.parameters(signature),
            others=() if signature is None else arguments.others(signature),
            defaults=() if signature is None else arguments.left_out(signature),
            form=_form(target),
        )
        return


def _taken(
    pair: Pair, target: FunctionDef | ClassDef, signature: Signature, arguments: Arguments
) -> tuple[bool | None, str]:
    """Return whether a call fits what it calls, and why it does not; None where it may."""
    fault = arguments.fault(signature) or arguments.misplaced(signature)
    if fault is None:
        return True, ""
    why = f"{_name(target)}{brief(signature)} {fault}"
    if _is_of_some(pair, target, arguments):
        return None, f"{why}; a subclass of the engine's takes it"
    return False, why


def _is_of_some(pair: Pair, target: FunctionDef | ClassDef, arguments: Arguments) -> bool:
    """Return whether a call fits a subclass's method, of which the value may be an instance."""
    if isinstance(target, ClassDef) or target.owner is None:
        return False
    return pair.precedents.some_takes(target.owner, target.node.name, arguments)


def _form(target: FunctionDef | ClassDef) -> Form:
    is_async = isinstance(target, FunctionDef) and isinstance(target.node, ast.AsyncFunctionDef)
    return Form.AWAITED if is_async else Form.CALLED


def _name(target: FunctionDef | ClassDef) -> str:
    if isinstance(target, ClassDef):
        return target.name
    owner = "" if target.owner is None else f"{target.owner.name}."
    return f"{owner}{target.node.name}"


def _signature(pair: Pair, target: FunctionDef | ClassDef) -> Signature | None:
    if isinstance(target, ClassDef):
        return constructor_of(pair, target)
    if not keeps_signature(pair, target):
        return None
    is_bound = target.owner is not None and not is_static(target.node)
    return Signature.of(target.node, is_bound=is_bound)


def _arguments(pair: Pair, call: ast.Call, place: Place) -> Arguments:
    """Read what a call gives, with the keys of a dictionary that its function writes out."""
    given = Arguments.of(call)
    for keyword in call.keywords:
        match keyword:
            case ast.keyword(arg=None, value=ast.Dict(keys=keys)):
                pass
            case ast.keyword(arg=None, value=ast.Name(id=name)) if place.functions:
                scope = pair.scope(place.module, place.functions[0])
                meanings = [each for _, each in scope.get(name, ())]
                dicts = [each for each in meanings if isinstance(each, ast.Dict)]
                keys = [key for each in dicts for key in each.keys]
            case _:
                continue
        words = {each.value for each in keys if isinstance(each, ast.Constant)}
        given = replace(given, names=given.names | set(map(str, words)))
    return given


def unpackings(pair: Pair, place: Place) -> Iterator[Contact]:
    """Compare how many names a result is unpacked into with how many values there are."""
    match place.node:
        case ast.Assign(
            targets=[ast.Tuple(elts=names)],
            value=ast.Call(func=func) | ast.Await(value=ast.Call(func=func)),
        ) if not any(isinstance(each, ast.Starred) for each in names):
            pass
        case _:
            return
    for target in called(pair, func, place):
        if isinstance(target, FunctionDef):
            lengths = result_lengths(target.node)
            name = _name(target)
            is_fault = bool(lengths) and len(names) not in lengths
            words = " or ".join(map(str, sorted(lengths)))
            why = f"{name} returns {words} values; {len(names)} are unpacked" if is_fault else ""
            yield Contact(
                kind=ContactKind.RESULT,
                verdict=Verdict.of(not is_fault if lengths else None),
                what=name,
                at=place.at,
                why=why if lengths else "the text of the function does not say how many it returns",
                engine_at=target.at,
                given=condition(place.guards),
            )
            return


def called(pair: Pair, func: ast.expr, place: Place) -> Iterator[FunctionDef | ClassDef]:
    """List the functions and classes of the engine that a call may be of, the likeliest first."""
    owner = class_around(place)
    match func:
        case ast.Attribute(
            value=ast.Call(func=ast.Name(id="super"), args=arguments), attr=name
        ) if owner:
            # `super(Base, self)` looks behind a base, and passes by its own methods.
            named = [each for part in arguments[:1] for each in pair.resolve(part, place)]
            order = pair.classes.ancestors(owner)
            after = next((each for each in order if each in named), owner)
            found = pair.method(owner, name, after=after)
            yield from [] if found is None else [found]
            return
        case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name) if owner:
            yield from _methods(pair, [owner], name)
            return
    for target in pair.resolve(func, place):
        match target:
            case FunctionDef() | ClassDef() if pair.is_engines(target.module.path):
                yield target
            case ClassDef() if _is_made_by_engine(pair, target):
                yield target
            case Value(module=module, node=ast.Attribute(value=saved, attr=name) as kept) if (
                ast.unparse(kept) != ast.unparse(func)
            ):  # an original that the plugin keeps: its first argument is the instance
                owners = pair.resolve(saved, Place(module, kept))
                for each in _methods(pair, [o for o in owners if isinstance(o, ClassDef)], name):
                    yield each if is_of_class(each.node) else replace(each, owner=None)
    if isinstance(func, ast.Attribute):
        classes = [e for e in pair.resolve(func.value, place) if isinstance(e, ClassDef)]
        for found in _methods(pair, classes, func.attr):
            # `Base.method(self, …)` is called with its instance.
            yield found if is_of_class(found.node) else replace(found, owner=None)
        yield from _methods(pair, pair.instances.classes(func.value, place), func.attr)


def _is_made_by_engine(pair: Pair, definition: ClassDef) -> bool:
    """Return whether a class of the plugin has a constructor of the engine's, or its fields."""
    definer = pair.classes.definer(definition, "__init__")
    if definer is None:
        return any(is_dataclass(pair, each) for each in pair.engine_bases(definition))
    return pair.is_engines(definer.module.path)


def _methods(pair: Pair, owners: list[ClassDef], name: str) -> Iterator[FunctionDef]:
    for owner in owners:
        found = pair.method(owner, name)
        if found is not None and not is_property(found.node):
            yield found
