"""What a plugin puts in place of an engine's functions, methods and classes."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from backend_caps.compatibility.contact import Contact, ContactKind, Verdict
from backend_caps.compatibility.decorators import is_of_class
from backend_caps.compatibility.nodes import walk
from backend_caps.compatibility.overrides import (
    fits,
    is_misfit,
    sites_of_method,
    supplied,
    takes_the_same,
)
from backend_caps.compatibility.pair import Pair
from backend_caps.compatibility.places import Place
from backend_caps.compatibility.replacements import assigned
from backend_caps.compatibility.results import results
from backend_caps.compatibility.sites import Site
from backend_caps.engines.source.guards import condition
from backend_caps.engines.source.index import FunctionDef
from backend_caps.engines.source.module import ClassDef, Module


def patches(pair: Pair, place: Place) -> Iterator[Contact]:
    """Look for what the plugin replaces, and compare what it puts there with its calls."""
    found = assigned(place.node)
    if found is None:
        return
    owner, name, value = found
    for target in pair.resolve(owner, place):
        match target:
            case Module(name=source, path=path) if pair.is_engines(path):
                is_there, whole = pair.has(source, name), f"{source}.{name}"
            case ClassDef() if pair.is_engines(target.module.path):
                is_there, whole = pair.has_member(target, name), f"{target.name}.{name}"
            case _:
                continue
        values = [each for each in pair.resolve(value, place) if isinstance(each, FunctionDef)]
        own = [each for each in values if not pair.is_engines(each.module.path)]
        if is_there and own and isinstance(target, Module) and not _is_used(pair, name):
            yield _unused(place, whole, f"the engine has {whole}, and uses it nowhere")
            return
        yield _patch(pair, place, whole, is_there)
        if own:
            yield from _compared(pair, own[0], target, name)
        return


def _patch(pair: Pair, place: Place, whole: str, is_there: bool | None) -> Contact:
    verdict, why = Verdict.of(is_there), ""
    if verdict is Verdict.BREAKS:
        if not pair.texts.is_read(whole):
            return _unused(place, whole, f"{whole} is not there, so that nothing takes what is put")
        verdict = Verdict.HOLDS  # an attribute that the plugin adds for something to read
    return Contact(
        kind=ContactKind.PATCH,
        verdict=verdict,
        what=whole,
        at=place.at,
        why="only running code knows whether it is there" if is_there is None else why,
        given=condition(place.guards),
    )


def _unused(place: Place, whole: str, why: str) -> Contact:
    return Contact(
        kind=ContactKind.PATCH,
        verdict=Verdict.UNUSED,
        what=whole,
        at=place.at,
        why=why,
        given=condition(place.guards),
    )


def _is_used(pair: Pair, name: str) -> bool:
    """Return whether the engine reads a name, bare or as an attribute, or has it as a text."""
    for module in pair.index.modules(sorted(pair.texts.engine_files(name))):
        for node in walk(module.tree):
            match node:
                case ast.Name(id=word, ctx=ast.Load()) | ast.Attribute(attr=word, ctx=ast.Load()):
                    pass
                case ast.Constant(value=str(word)):
                    pass
                case _:
                    continue
            if word == name:
                return True
    return False


def _compared(
    pair: Pair, function: FunctionDef, owner: Module | ClassDef, name: str
) -> Iterator[Contact]:
    """Compare a function with the engine's calls of the one that it takes the place of."""
    before = _function(pair, owner, name)
    if before is None:
        return
    what = f"patch of {owner.name}.{name} by {function.node.name}"
    if isinstance(owner, ClassDef):
        order = pair.classes.ancestors(owner)
        bases = [each for each in order if pair.is_engines(each.module.path)]
        # A plain function in the place of a method of the class is called without one.
        is_plain = is_of_class(before.node) and not is_of_class(function.node)
        function = replace(function, owner=None if is_plain else owner)
        definer = next(each for each in bases if name in each.methods)
        sites = []
        if name == "__init__":
            made = [e for e in _constructions(pair, owner) if not pair.replacements.covers(e)]
            sites = [each for each in made if fits(pair, definer, name, each)]
        elif not name.startswith("__") and not takes_the_same(function, before):
            misfits = partial(is_misfit, pair, function, before)
            sites = [*sites_of_method(pair, owner, bases, name, misfits)]
    else:
        calls = () if takes_the_same(function, before) else _calls(pair, owner, name)
        sites = [each for each in calls if not pair.replacements.covers(each)]
    yield supplied(pair, what, function, sites)
    yield from results(pair, what, function, sites, before.node, before.module)


def _constructions(pair: Pair, owner: ClassDef) -> Iterator[Site]:
    """List the engine's calls that construct a class, by its bare name."""
    for path in pair.texts.constructing(owner.name):
        for site in pair.sites_in(path).get(owner.name, ()):
            if owner in pair.resolve(site.call.func, site.place):
                yield site


def _function(pair: Pair, owner: Module | ClassDef, name: str) -> FunctionDef | None:
    """Return the engine's function of a name, which a module may import."""
    if isinstance(owner, ClassDef):
        definer = pair.classes.definer(owner, name)
        if definer is None:
            return None
        return FunctionDef(definer.module, definer.methods[name], definer)
    found = pair.index.resolve(ast.Name(id=name, ctx=ast.Load()), owner)
    return next((each for _, each in found if isinstance(each, FunctionDef)), None)


def _calls(pair: Pair, owner: Module, name: str) -> Iterator[Site]:
    """List the engine's calls of a module's function, which it may import, by its bare name."""
    for path in pair.texts.calling_bare(name):
        for site in pair.sites_in(path).get(name, ()):
            if isinstance(site.call.func, ast.Name):
                targets = pair.resolve(site.call.func, site.place)
                modules = [each.module for each in targets if isinstance(each, FunctionDef)]
                if modules and owner in {*modules, site.module}:
                    yield site
