"""What a plugin supplies in place of an engine's own, beside how the engine calls it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
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
from backend_caps.compatibility.signatures import Arguments, Signature, brief
from backend_caps.compatibility.sites import Site
from backend_caps.engines.source.guards import Function
from backend_caps.engines.source.index import External, FunctionDef
from backend_caps.engines.source.module import ClassDef


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
                owner_at=definition.at,
                why=f"{owner.name}.{name} {fault}",
                engine_at=owner.module.at(owner.methods[name]),
            )
        elif not is_property(function):
            sites = [*sites_of_method(pair, definition, bases, name)]
            sites = [each for each in sites if fits(pair, owner, name, each)]
            contact = supplied(pair, what, method, sites)
            yield replace(contact, owner_at=definition.at)
            yield from results(pair, what, method, sites, owner.methods[name], owner.module)
        else:
            yield Contact(
                kind=ContactKind.OVERRIDE,
                verdict=Verdict.HOLDS,
                what=what,
                at=method.at,
                owner_at=definition.at,
            )


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
                why=f"{brief(signature)} {fault}; {site.caller} calls it with {brief(arguments)}",
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
    is_only_family = pair.is_only_family(root, name)
    # The class of another receiver is told by a file that names it.
    mentioning = None if is_only_family else [each.name for each in bases]
    for site in pair.sites(name, mentioning):
        assert isinstance(site.call.func, ast.Attribute), "the sites are calls of an attribute"
        match site.call.func.value:
            case ast.Name(id="self" | "cls"):
                if _runs(pair, definition, site):
                    yield site
            case ast.Call(func=ast.Name(id="super")):
                continue
            case ast.Name(id=own) | ast.Attribute(attr=own) if own[:1].isupper():
                continue  # a class of the engine's, by its name
            case receiver if _is_external(pair, receiver, site):
                continue
            case receiver if pair.precedents.take(root, name, Arguments.of(site.call)):
                if is_only_family:
                    yield site
                    continue
                stated = pair.instances.classes(receiver, site.place)
                if not nodes.keys().isdisjoint(each.node for each in stated):
                    yield site


def _runs(pair: Pair, definition: ClassDef, site: Site) -> bool:
    """Return whether a call that a base's method makes of `self` is made for a class."""
    owner = None if site.owner is None else site.module.definitions.get(site.owner)
    if owner is None or not site.functions:
        return False
    around = site.functions[-1].name
    return (owner, around) in pair.live_methods.of(definition) and (
        pair.precedents.take_of_base(owner, around, site.call)
    )


def _is_external(pair: Pair, receiver: ast.expr, site: Site) -> bool:
    """Return whether a call is of a module or class of another package, such as `torch.cuda`."""
    targets = pair.resolve(receiver, site.place)
    # A name of the engine's that only running code knows, as a module's `__getattr__` does, may be
    # anything.
    own = f"{pair.engine}."
    return bool(targets) and all(
        isinstance(each, External) and not each.path.startswith(own) for each in targets
    )
