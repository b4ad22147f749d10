"""Methods that an engine needs of a plugin's class, and that it neither has nor inherits."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from itertools import islice

from backend_caps.compatibility.contact import Contact, ContactKind, Verdict
from backend_caps.compatibility.decorators import is_of_class, is_static, names_of
from backend_caps.compatibility.nodes import walk
from backend_caps.compatibility.overrides import raises_alone, sites_of_method
from backend_caps.compatibility.pair import Pair
from backend_caps.compatibility.signatures import Signature
from backend_caps.compatibility.sites import Site
from backend_caps.engines.source.guards import Function, returns
from backend_caps.engines.source.index import External
from backend_caps.engines.source.module import ClassDef

_SEVERAL = 2
"""One class of an engine's without a method may stand for what is unknown, or not in use."""
_CHECKING = frozenset({"abc.ABC", "typing.Protocol", "ABCMeta", "abc.ABCMeta"})
"""Bases, and classes of classes, that look for abstract methods when an instance is made."""


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
            if not _only_raises(method):
                continue
            sites = [
                each
                for each in sites_of_method(pair, definition, bases, name)
                if not _passes_on(pair, each, base, name)
                and not any(_is_off(pair, definition, given) for given in each.permissions)
            ]
            if sites:
                yield _uncalled(pair, definition, method, base, sites, called)


def _uncalled(
    pair: Pair,
    definition: ClassDef,
    method: Function,
    base: ClassDef,
    sites: list[Site],
    called: Collection[str],
) -> Contact:
    """Compare what calls a method that only raises with what the engine's own classes do without.

    A class without what several of these are without has a precedent.
    """
    num_without = len([*islice(pair.precedents.without(base, method.name), _SEVERAL)])
    reached = [each for each in sites if each.caller_at in called]
    site = (reached or sites)[0]
    verdict = Verdict.BREAKS if reached and not num_without else Verdict.NOT_CHECKED
    verdict = Verdict.HOLDS if num_without >= _SEVERAL else verdict
    why = f"{site.caller} calls it, and {base.name}.{method.name} only raises"
    return _lacking(definition, method, verdict, why, site.at)


def _passes_on(pair: Pair, site: Site, base: ClassDef, name: str) -> bool:
    """Return whether a method of the same name passes a call on to others of its family."""
    if site.owner is None or not site.functions or site.functions[-1].name != name:
        return False
    owner = site.module.definitions.get(site.owner)
    return owner is not None and base in pair.classes.ancestors(owner)


def _is_off(pair: Pair, definition: ClassDef, name: str) -> bool:
    """Return whether an attribute is false in a class's body, and no method assigns another value.

    What the engine calls under such a permission is not called of this class.
    """
    owner = _setter(pair, definition, name)
    if owner is None or name in owner.methods:
        return False
    nodes = (node for each in pair.classes.ancestors(definition) for node in walk(each.node))
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
    if not pair.is_whole(definition):
        return False  # another base may define it
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
    return raises_alone(function) or (_is_abstract(function) and not returns(function))
