"""The attributes of an engine's objects that a plugin reads, and those that it has to leave."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from backend_caps.compatibility.calls import class_at, instances
from backend_caps.compatibility.contact import Contact, Verdict
from backend_caps.compatibility.pair import Pair, assigned
from backend_caps.compatibility.places import Place
from backend_caps.engines.source.guards import Function, condition
from backend_caps.engines.source.module import ClassDef

_OF_EVERY = frozenset(dir(object))


def instance_reads(pair: Pair, place: Place) -> Iterator[Contact]:
    """Look for an attribute that the plugin reads of an object of the engine's class."""
    match place.node:
        case ast.Attribute(value=owner, attr=name, ctx=ast.Load()) if name not in _OF_EVERY:
            pass
        case _:
            return
    own = class_at(place)
    if isinstance(owner, ast.Name) and owner.id == "self" and own is not None:
        if not any(pair.is_engines(each.module.path) for each in pair.classes.ancestors(own)):
            return
        definitions = [own]
    else:
        definitions = [*instances(pair, owner, place)]
    for definition in definitions:
        is_there = pair.has_member(definition, name)
        if is_there is False and pair.is_set(name):
            is_there = None
        yield Contact(
            verdict={True: Verdict.HOLDS, None: Verdict.NOT_CHECKED, False: Verdict.BREAKS}[is_there],
            what=f"read of {definition.name}.{name}",
            at=place.at,
            why=f"{definition.name} has no {name}" if is_there is False else "",
            engine_at=definition.at,
            given=condition(place.guards),
        )
        return


def left_out(pair: Pair, definition: ClassDef) -> Iterator[Contact]:
    """Find attributes that methods of the engine read, and a constructor without super() lacks."""
    own = definition.methods.get("__init__")
    order = pair.classes.ancestors(definition)
    bases = [each for each in order[1:] if pair.is_engines(each.module.path)]
    if own is None or _calls_base(own, {each.name for each in bases}):
        return
    has = {name for each in order if each not in bases for name in assigned(each)}
    has |= {name for each in order for name in (*each.methods, *each.statements)}
    for base in bases:
        constructor = base.methods.get("__init__")
        if constructor is None:
            continue
        given = set(_stored(constructor))
        for name, method in base.methods.items():
            if name == "__init__" or pair.classes.definer(definition, name) is not base:
                continue
            if not pair.is_live(definition, base, name):
                continue
            for node in ast.walk(method):
                match node:
                    case ast.Attribute(value=ast.Name(id="self"), attr=attr, ctx=ast.Load()) if (
                        attr in given - has
                    ):
                        has.add(attr)
                        yield Contact(
                            verdict=Verdict.BREAKS,
                            what=f"{definition.name}.{attr}",
                            at=definition.module.at(own),
                            why=f"{base.name}.{name} reads it, and __init__ leaves it out",
                            engine_at=base.module.at(node),
                        )


def _calls_base(function: Function, bases: set[str]) -> bool:
    """Return whether a constructor calls that of a base."""
    for node in ast.walk(function):
        match node:
            case ast.Attribute(value=ast.Call(func=ast.Name(id="super")), attr="__init__"):
                return True
            case ast.Attribute(value=ast.Name(id=name) | ast.Attribute(attr=name), attr="__init__"):
                if name in bases:
                    return True
    return False


def _stored(function: ast.AST) -> Iterator[str]:
    for node in ast.walk(function):
        match node:
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                yield name
