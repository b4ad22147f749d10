"""What a plugin supplies in place of an engine's own, beside how the engine calls it."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial

from backend_caps.compatibility.contact import Contact, ContactKind, Verdict
from backend_caps.compatibility.decorators import (
    is_of_class,
    is_property,
    is_static,
    keeps_signature,
    names_of,
)
from backend_caps.compatibility.pair import Pair
from backend_caps.compatibility.results import results, unpacks_other
from backend_caps.compatibility.signatures import Arguments, Signature, brief, result_lengths
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
            base = FunctionDef(owner.module, owner.methods[name], owner)
            sites: list[Site] = []
            if not takes_the_same(method, base):
                misfits = partial(is_misfit, pair, method, base)
                sites += sites_of_method(pair, definition, bases, name, misfits)
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


def raises_alone(function: Function) -> bool:
    """Return whether a function does nothing but raise."""
    body = [
        each
        for each in function.body
        if not (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant))
    ]
    return [*map(type, body)] == [ast.Raise]


def takes_the_same(function: FunctionDef, base: FunctionDef) -> bool:
    """Return whether any call of one function goes with another, without a look at the calls.

    Most overrides are so; a call that unpacks the result is looked at.
    """
    if raises_alone(function.node):
        return True  # with any arguments
    is_same_kind = is_of_class(function.node) == is_of_class(base.node)
    is_same = is_same_kind and signature_of(function) == signature_of(base)
    return is_same and not result_lengths(function.node)


def is_misfit(pair: Pair, method: FunctionDef, base: FunctionDef, site: Site) -> bool:
    """Return whether a call goes with the engine's method, and not with one in its place.

    This takes microseconds; whether the call is made for the plugin's class may take the parsing
    of all classes of the family.
    """
    is_at_odds = (
        (Arguments.of(site.call).fault(signature_of(method)) is not None)
        or (_of_instance(method, site) is not None)
        or unpacks_other(site, method.node)
    )
    assert base.owner is not None, "it is a method"
    is_met = is_at_odds and not pair.replacements.covers(site)
    return is_met and fits(pair, base.owner, base.node.name, site)


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
    signature = signature_of(function)
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


def signature_of(function: FunctionDef) -> Signature:
    """Read the parameters of a function or method of a class."""
    is_bound = function.owner is not None and not is_static(function.node)
    return Signature.of(function.node, is_bound=is_bound)


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
    pair: Pair,
    definition: ClassDef,
    bases: list[ClassDef],
    name: str,
    is_wanted: Callable[[Site], bool] = lambda _: True,
) -> Iterator[Site]:
    """List the calls of the engine that may be of a method of a plugin's class.

    Args:
        pair: both.
        definition: the plugin's class.
        bases: the engine's classes above it.
        name: of the method.
        is_wanted: returns whether a call is looked at.
    """
    root = [base for base in bases if name in base.methods][-1]
    nodes = {each.node: each for each in bases}
    is_only_family = pair.is_only_family(root, name)
    files = _calling(pair, None if is_only_family else bases, name)
    files |= {each.module.path for each in bases}
    for site in filter(is_wanted, pair.sites(name, files)):
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
            case receiver:
                if not is_only_family:
                    stated = pair.instances.classes(receiver, site.place)
                    if nodes.keys().isdisjoint(each.node for each in stated):
                        continue
                # This comes last: it parses all classes of the family.
                if pair.precedents.take(root, name, Arguments.of(site.call)):
                    yield site


def _calling(pair: Pair, named: Iterable[ClassDef] | None, name: str) -> set[str]:
    """List the files that call a method of others than `self`, and name one of the classes."""
    calling = set(pair.texts.calling_of_others.get(name, ()))
    if not calling or named is None:
        return calling
    naming = {path for each in named for path in pair.texts.engine_files(each.name)}
    return calling & naming


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
