"""What a plugin supplies in place of an engine's own, beside how the engine calls it."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

from backend_caps.compatibility.contact import Contact, ContactKind, Verdict
from backend_caps.compatibility.decorators import (
    is_of_class,
    is_property,
    is_static,
    keeps_signature,
    names_of,
)
from backend_caps.compatibility.pair import Pair
from backend_caps.compatibility.results import results
from backend_caps.compatibility.signatures import Arguments, Signature
from backend_caps.compatibility.sites import Site
from backend_caps.engines.source.guards import Function, returns
from backend_caps.engines.source.index import External, FunctionDef
from backend_caps.engines.source.module import ClassDef

_CHECKING = frozenset({"abc.ABC", "typing.Protocol", "ABCMeta", "abc.ABCMeta"})
"""Bases and metaclasses that look for abstract methods when an instance is made."""


def overrides(pair: Pair, definition: ClassDef) -> Iterator[Contact]:
    """Compare the methods of a plugin's class with the engine's calls of its bases' ones."""
    bases = pair.engine_bases(definition)
    for name, function in pair.own_methods(definition).items() if bases else ():
        owner = next((base for base in bases if name in base.methods), None)
        if owner is None or name.startswith("__"):
            continue
        method = FunctionDef(definition.module, function, definition)
        what = f"{definition.name}.{name}"
        if (fault := _other_kind(function, owner.methods[name])) is not None:
            yield Contact(
                kind=ContactKind.OVERRIDE,
                verdict=Verdict.BREAKS,
                what=what,
                at=method.at,
                why=f"{owner.name}.{name} {fault}",
                engine_at=owner.module.at(owner.methods[name]),
            )
        elif not is_property(function):
            sites = [*sites_of_method(pair, definition, bases, name)]
            sites = [each for each in sites if fits(pair, owner, name, each)]
            contact = supplied(pair, what, method, sites)
            if not sites and contact.verdict is Verdict.HOLDS:
                contact = _beside_base(pair, contact, method, owner)
            yield contact
            yield from results(pair, what, method, sites, owner.methods[name], owner.module)
        else:
            yield Contact(kind=ContactKind.OVERRIDE, verdict=Verdict.HOLDS, what=what, at=method.at)


def _beside_base(pair: Pair, contact: Contact, method: FunctionDef, owner: ClassDef) -> Contact:
    """Compare a method with what its base requires, which each call gives, wherever it is."""
    base = FunctionDef(owner.module, owner.methods[method.node.name], owner)
    if not keeps_signature(pair, base) or not any(pair.sites(method.node.name)):
        return contact
    wanted = Signature.of(base.node, is_bound=not is_static(base.node))
    required = [each for each in wanted.parameters if each.is_required]
    arguments = Arguments(
        tuple(each.name for each in required if each.is_positional),
        frozenset(each.name for each in required if not each.is_positional),
        has_sequence=wanted.takes_more,
        has_mapping=wanted.takes_any_name,
    )
    own = Signature.of(method.node, is_bound=not is_static(method.node))
    fault = arguments.fault(own)
    if fault is None:
        return contact
    why = f"{own} {fault}; {owner.name}.{method.node.name} requires {arguments}"
    return replace(contact, verdict=Verdict.BREAKS, why=why, engine_at=base.at)


def fits(pair: Pair, owner: ClassDef, name: str, site: Site) -> bool:
    """Return whether the engine's own method takes a call: one that it does not is of others."""
    method = FunctionDef(owner.module, owner.methods[name], owner)
    signature = Signature.of(method.node, is_bound=not is_static(method.node))
    return Arguments.of(site.call).fault(signature) is None or not keeps_signature(pair, method)


def _other_kind(own: Function, base: Function) -> str | None:
    """Say what the base's method is, where the plugin's is something else."""
    if is_property(base) is not is_property(own):
        return "is read as an attribute" if is_property(base) else "is called, and is no property"
    is_async = isinstance(base, ast.AsyncFunctionDef)
    if is_async is not isinstance(own, ast.AsyncFunctionDef) and not is_property(own):
        return "is awaited" if is_async else "is not awaited"
    return None


def supplied(pair: Pair, what: str, function: FunctionDef, sites: Iterable[Site]) -> Contact:
    """Compare a function of the plugin with the calls of it."""
    if not keeps_signature(pair, function):
        names = ", ".join(names_of(function.node))
        return Contact(
            kind=ContactKind.OVERRIDE,
            verdict=Verdict.NOT_CHECKED,
            what=what,
            at=function.at,
            why=f"its decorators may change its parameters: {names}",
        )
    is_bound = function.owner is not None and not is_static(function.node)
    signature = Signature.of(function.node, is_bound=is_bound)
    for site in sites:
        arguments = Arguments.of(site.call)
        fault = arguments.fault(signature)
        if fault is not None and not site.compares_signatures:
            return Contact(
                kind=ContactKind.OVERRIDE,
                verdict=Verdict.BREAKS,
                what=what,
                at=function.at,
                why=f"{signature} {fault}; {site.caller} calls it with {arguments}",
                engine_at=site.at,
            )
        if fault := _of_instance(function, site):
            return Contact(
                kind=ContactKind.OVERRIDE,
                verdict=Verdict.BREAKS,
                what=what,
                at=function.at,
                why=fault,
                engine_at=site.at,
            )
    return Contact(kind=ContactKind.OVERRIDE, verdict=Verdict.HOLDS, what=what, at=function.at)


def _of_instance(function: FunctionDef, site: Site) -> str | None:
    """Say that a method is called of the class, where it needs an instance."""
    match site.call.func:
        case ast.Attribute(value=ast.Name(id="cls")):
            pass
        case _:
            return None
    if function.owner is None or is_of_class(function.node):
        return None
    return f"needs an instance; {site.caller} calls it of the class"


def sites_of_method(
    pair: Pair, definition: ClassDef, bases: list[ClassDef], name: str
) -> Iterator[Site]:
    """List the calls of the engine that may be of a method of a plugin's class."""
    root = [base for base in bases if name in base.methods][-1]
    nodes = {each.node: each for each in bases}
    for site in pair.sites(name):
        assert isinstance(site.call.func, ast.Attribute), "the sites are calls of an attribute"
        match site.call.func.value:
            case ast.Name(id="self" | "cls"):
                owner = nodes.get(site.owner) if site.owner is not None else None
                around = site.functions[-1].name if site.functions else ""
                if owner is not None and pair.runs_for(definition, owner, around):
                    yield site
            case ast.Call(func=ast.Name(id="super")):
                continue
            case ast.Name(id=own) | ast.Attribute(attr=own) if own[:1].isupper():
                continue  # a class of the engine's, by its name
            case _ if pair.is_only_family(root, name):
                yield site
            case receiver:
                stated = pair.instances.classes(receiver, site.place)
                if not nodes.keys().isdisjoint(each.node for each in stated):
                    yield site


def hooks(pair: Pair, definition: ClassDef, called: Collection[str]) -> Iterator[Contact]:
    """Find methods that the engine calls, and that a class neither has nor inherits.

    Args:
        pair: both.
        definition: a class of the plugin.
        called: the places of the engine's functions that the plugin calls. A call elsewhere
            counts as not checked: whether the plugin gets there, only running code knows.
    """
    bases = pair.engine_bases(definition)
    for base in bases:
        for name, method in base.methods.items():
            if name.startswith("__") or not (_is_abstract(method) or _only_raises(method)):
                continue
            if not _is_first_without(pair, definition, base, name):
                continue
            if _is_needed(pair, definition, method):
                why = f"{base.name}.{name} is abstract: no instance can be made"
                yield _lacking(definition, method, Verdict.BREAKS, why, base.module.at(method))
                continue
            sites = [*sites_of_method(pair, definition, bases, name)]
            sites = [
                e for e in sites if not any(_is_off(pair, definition, p) for p in e.permissions)
            ]
            if _only_raises(method) and sites:
                reached = [each for each in sites if each.caller_at in called]
                site = (reached or sites)[0]
                verdict = Verdict.BREAKS if reached else Verdict.NOT_CHECKED
                why = f"{site.caller} calls it, and {base.name}.{name} only raises"
                yield _lacking(definition, method, verdict, why, site.at)


def _is_off(pair: Pair, definition: ClassDef, name: str) -> bool:
    """Return whether an attribute is false in a class's body, and no method assigns another value.

    What the engine calls under such a permission is not called of this class.
    """
    owner = _setter(pair, definition, name)
    if owner is None or name in owner.methods:
        return False
    nodes = (node for each in pair.classes.ancestors(definition) for node in ast.walk(each.node))
    is_assigned = any(
        isinstance(node, ast.Attribute) and node.attr == name and isinstance(node.ctx, ast.Store)
        for node in nodes
    )
    values = [each.value for each in owner.statements[name]]
    is_false = all(isinstance(each, ast.Constant) and not each.value for each in values)
    return is_false and not is_assigned


def _lacking(
    definition: ClassDef, method: Function, verdict: Verdict, why: str, engine_at: str
) -> Contact:
    return Contact(
        kind=ContactKind.MEMBER,
        verdict=verdict,
        what=f"{definition.name}.{method.name}",
        at=definition.at,
        why=why,
        engine_at=engine_at,
        remedy=f"define {method.name}{Signature.of(method, is_bound=not is_static(method))}",
    )


def _is_first_without(pair: Pair, definition: ClassDef, base: ClassDef, name: str) -> bool:
    """Return whether a class, and no base of it in the plugin, is to define a base's method.

    One whose subclasses do is none: they are what instances are made of.
    """
    bases = pair.classes.ancestors(definition)[1:]
    own = [each for each in bases if not pair.is_engines(each.module.path)]
    derived = [each for each in own if base in pair.classes.ancestors(each)]
    return _are_without(pair, definition, base, name) and not any(
        _are_without(pair, each, base, name) for each in derived
    )


def _is_needed(pair: Pair, definition: ClassDef, method: Function) -> bool:
    """Return whether an abstract method keeps a class from having instances.

    A backend, of which the class alone is used, has class methods: those are needed when called.
    """
    family = [definition, *pair.subclasses(definition)]
    is_made = any(each.name in pair.mentioned for each in family if not pair.subclasses(each))
    if is_of_class(method) or not _is_abstract(method) or not is_made:
        return False
    order = pair.classes.order(definition)
    words = {each.path for each in order if isinstance(each, External)}
    for each in order:
        if isinstance(each, ClassDef):
            words |= {ast.unparse(keyword.value) for keyword in each.node.keywords}
    is_checked = not words.isdisjoint(_CHECKING)
    return is_checked and not any(map(_is_abstract, definition.methods.values()))


def _is_abstract(function: Function) -> bool:
    return any("abstract" in name for name in names_of(function))


def _are_without(pair: Pair, definition: ClassDef, base: ClassDef, name: str) -> bool:
    """Return whether no class without subclasses, at a class or below it, has a base's method."""
    family = [definition, *pair.subclasses(definition)]
    last = [each for each in family if not pair.subclasses(each)]
    return all(_setter(pair, each, name) is base for each in last)


def _setter(pair: Pair, definition: ClassDef, name: str) -> ClassDef | None:
    """Return the class that gives a class an attribute, by a method or a value."""
    order = pair.classes.ancestors(definition)
    return next((e for e in order if name in e.methods or name in e.statements), None)


def _only_raises(function: Function) -> bool:
    """Return whether a method is there to be overridden."""
    body = [
        each
        for each in function.body
        if not (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant))
    ]
    if [*map(type, body)] == [ast.Raise]:
        return True
    return _is_abstract(function) and not returns(function)
