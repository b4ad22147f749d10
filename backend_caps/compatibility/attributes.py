"""Attributes that an engine's own methods read of a plugin's instances, and do not find."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator

from backend_caps.compatibility.contact import Contact, ContactKind, Verdict
from backend_caps.compatibility.nodes import walk
from backend_caps.compatibility.pair import Pair
from backend_caps.compatibility.places import Place, Places
from backend_caps.compatibility.signatures import shortened
from backend_caps.engines.source.guards import Function, condition
from backend_caps.engines.source.index import External
from backend_caps.engines.source.module import ClassDef


def left_out(pair: Pair, definition: ClassDef) -> Iterator[Contact]:
    """Find attributes that a constructor which calls not all of its bases' leaves out."""
    own = pair.own_methods(definition).get("__init__")
    bases = pair.engine_bases(definition)
    if own is None or not bases or _is_made_as_other(pair, definition):
        return
    runs = pair.live_methods.of(definition)
    skipped = [each for each in bases if (each, "__init__") not in runs]
    order = pair.classes.ancestors(definition)
    has = {name for each in order if each not in skipped for name in pair.members(each)}
    has |= {name for each in order for name in (*each.methods, *each.statements)}
    # A constructor that the engine's own class skips as well is not missed.
    for base in [e for e in skipped if (e, "__init__") in pair.live_methods.of(bases[0])]:
        constructor = base.methods.get("__init__")
        given = set() if constructor is None else set(_assigned(constructor))
        for place, node in _reads(pair, definition, base, given - has):
            if node.attr not in has:
                has.add(node.attr)
                if _is_left_out_elsewhere(pair, base, place.functions[-1].name, node.attr):
                    continue
                # Whether such a condition ever holds of an instance, running code knows.
                is_conditional = any("self." in ast.unparse(each) for each in place.guards)
                words = condition(place.guards)
                where = f" where {shortened(words)}" if words else ""
                reader = f"{base.name}.{place.functions[-1].name}"
                yield Contact(
                    kind=ContactKind.MEMBER,
                    verdict=Verdict.CHANGED if is_conditional else Verdict.BREAKS,
                    what=f"{definition.name}.{node.attr}",
                    at=definition.module.at(own),
                    owner_at=definition.at,
                    why=f"{reader} reads it{where}, and __init__ does not assign it",
                    engine_at=base.module.at(node),
                    remedy=f"assign self.{node.attr}, or call super().__init__()",
                )


def _is_left_out_elsewhere(pair: Pair, base: ClassDef, reader: str, name: str) -> bool:
    """Return whether a base's method reads an attribute that a class of the engine's lacks too."""
    for each in pair.derived(base):
        runs = pair.live_methods.of(each)
        has = (pair.members(own) for own in pair.classes.ancestors(each) if own is not base)
        is_alike = (base, "__init__") not in runs and (base, reader) in runs
        if is_alike and pair.is_engines(each.module.path) and not any(name in own for own in has):
            return True
    return False


def is_assigned(pair: Pair, owner: ClassDef | None, name: str) -> bool:
    """Return whether either may assign an attribute of a class's instances, or of the class.

    What is known to be an instance of another class is none.
    """
    if name in pair.texts.set_by_text:
        return True
    for module in pair.index.modules(pair.texts.assigning.get(name, ())):
        for place in Places(module, pair.conditions):
            match place.node:
                case ast.Assign(targets=targets):
                    pass
                case ast.AnnAssign(target=target) | ast.AugAssign(target=target):
                    targets = [target]
                case _:
                    continue
            for node in (each for whole in targets for each in walk(whole)):
                match node:
                    case ast.Attribute(value=value, attr=attr, ctx=ast.Store()) if attr == name:
                        if _may_be(pair, value, place, owner):
                            return True
    return False


def _may_be(pair: Pair, value: ast.expr, place: Place, owner: ClassDef | None) -> bool:
    """Return whether a value may be an instance of a class, or the class."""
    if isinstance(value, ast.Name) and value.id == "self":
        return False  # one of its members, which are known
    named = pair.resolve(value, place)
    if named and all(isinstance(each, External) for each in named):
        return False
    found = [each for each in named if isinstance(each, ClassDef)]
    found += pair.instances.classes(value, place)
    if not found or owner is None:
        return True
    return any(
        owner in pair.classes.ancestors(each) or each in pair.classes.ancestors(owner)
        for each in found
    )


def _is_made_as_other(pair: Pair, definition: ClassDef) -> bool:
    """Return whether a constructor calls that of a class which is no base, for its instance."""
    order = pair.classes.ancestors(definition)
    for each in order:
        constructor = each.methods.get("__init__")
        if constructor is None or (each, "__init__") not in pair.live_methods.of(definition):
            continue
        place = Place(each.module, constructor, functions=(constructor, *each.functions))
        for owner in _constructors_called(constructor):
            targets = pair.resolve(owner, place)
            if any(isinstance(e, ClassDef) and e not in order for e in targets):
                return True
    return False


def _constructors_called(function: Function) -> Iterator[ast.expr]:
    """List the classes whose constructors are called with an instance."""
    for node in walk(function):
        match node:
            case ast.Call(func=ast.Attribute(value=owner, attr="__init__"), args=[ast.Name(), *_]):
                yield owner


def _reads(
    pair: Pair, definition: ClassDef, base: ClassDef, names: Collection[str]
) -> list[tuple[Place, ast.Attribute]]:
    """List what those methods of a base read of `self` that run for a class, the surest first."""
    if not names:
        return []
    runs = pair.live_methods.of(definition)
    methods = {method for name, method in base.methods.items() if (base, name) in runs}
    found = []
    for place in Places(base.module, pair.conditions):
        match place.node:
            case ast.Attribute(value=ast.Name(id="self"), ctx=ast.Load()) as node if (
                node.attr in names
                and not methods.isdisjoint(place.functions)
                and place.functions[-1].name != "__init__"
            ):
                found.append((place, node))
    return sorted(found, key=lambda each: len(each[0].guards))


def _assigned(function: Function) -> Iterator[str]:
    for node in walk(function):
        match node:
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                yield name
