"""The points at which a plugin meets an engine."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from operator import itemgetter

from backend_caps.compatibility.attributes import left_out
from backend_caps.compatibility.calls import calls, unpackings
from backend_caps.compatibility.contact import Contact, ContactKind, Verdict
from backend_caps.compatibility.declarations import declarations
from backend_caps.compatibility.entry_points import entry_points
from backend_caps.compatibility.hooks import hooks
from backend_caps.compatibility.names import imports, reads
from backend_caps.compatibility.overrides import overrides
from backend_caps.compatibility.pair import Pair
from backend_caps.compatibility.patches import patches
from backend_caps.compatibility.paths import class_paths
from backend_caps.compatibility.places import Place, Places
from backend_caps.compatibility.registration import Registrations
from backend_caps.compatibility.signatures import plain
from backend_caps.engines.source.guards import returns
from backend_caps.engines.source.module import ClassDef, Module
from backend_caps.engines.source.statements import Statement

_LOOKS: Mapping[type[ast.AST], Sequence[Callable[[Pair, Place], Iterator[Contact]]]] = {
    ast.Import: (imports,),
    ast.ImportFrom: (imports,),
    ast.Attribute: (reads,),
    ast.Assign: (class_paths, patches, unpackings),
    ast.AnnAssign: (class_paths,),
    ast.Call: (class_paths, patches, calls),
    ast.Dict: (class_paths,),
    ast.Return: (class_paths,),
}


def contacts(pair: Pair, only: Collection[str] | None = None) -> list[Contact]:
    """List the points of contact of a plugin with an engine, each once.

    Args:
        pair: both.
        only: the plugin's files to look at; all of them if None.
    """
    return list(dict.fromkeys(_found(pair, only)))


def _found(pair: Pair, only: Collection[str] | None) -> Iterator[Contact]:
    registrations = Registrations(pair)
    modules = [each for each in pair.modules() if only is None or each.path in only]
    found = [each for module in modules for each in _at_places(pair, module)]
    yield from found
    yield from entry_points(pair)
    yield from declarations(pair)
    calls = (each.engine_at for each in found if each.kind is ContactKind.CALL)
    called = frozenset(filter(None, calls))
    for module in modules:
        for definition in pair.plugin_classes(module):
            if pair.engine_bases(definition):
                yield _derived(pair, definition)
            yield from overrides(pair, definition)
            yield from hooks(pair, definition, called)
            yield from left_out(pair, definition)
            yield from registrations.constructors(definition)
            yield from registrations.members(definition)


def _derived(pair: Pair, definition: ClassDef) -> Contact:
    """Return the point of contact that a class which derives from one of the engine's is."""
    bases = pair.engine_bases(definition)
    own = {n for e in pair.classes.ancestors(definition) if e not in bases for n in e.methods}
    inherited = {name for each in bases for name in each.methods} - own
    entered = inherited & pair.texts.calling_of_others.keys()
    return Contact(
        kind=ContactKind.CLASS,
        verdict=Verdict.HOLDS,
        what=definition.name,
        at=definition.at,
        own=tuple(sorted(_kept(pair, definition))) if pair.is_whole(definition) else (),
        inherited=tuple(sorted(entered)),
        values=tuple(_values(pair, definition)),
        called_of_self=tuple(sorted(inherited & pair.texts.calling.keys() - entered)),
    )


def _values(pair: Pair, definition: ClassDef) -> Iterator[tuple[str, str]]:
    """List the plain values that a class has of the engine's, by `name`, or `name()` of methods.

    What it has by another class of the plugin is in that one's list.
    """
    order = pair.classes.ancestors(definition)
    own = [each for each in order[1:] if not pair.is_engines(each.module.path)]
    listed = {base for each in own for base in pair.engine_bases(each)}
    seen: set[str] = set()
    for base in order:
        names = sorted({*base.statements, *base.methods, *pair.members(base)} - seen)
        seen.update(names)
        if pair.is_engines(base.module.path) and base not in listed:
            yield from filter(itemgetter(1), (_value(base, name) for name in names))


def _value(base: ClassDef, name: str) -> tuple[str, str]:
    match base.methods.get(name), base.statements.get(name):
        case None, [Statement(value=ast.expr() as value)]:
            return name, plain(value)
        case function, _ if function is not None:
            found = [plain(case.value) for case in returns(function)]
            is_alone = len(found) == 1 and len(function.body) <= 2  # noqa: PLR2004 - a docstring
            return f"{name}()", found[0] if is_alone else ""
    return name, ""


def _kept(pair: Pair, definition: ClassDef) -> Iterator[str]:
    """List the methods in a class's body but those that the plugin takes from it for others."""
    for name in pair.own_methods(definition):
        if f"{definition.name}.{name}" not in pair.texts.taken:
            yield name


def _at_places(pair: Pair, module: Module) -> Iterator[Contact]:
    for place in Places(module, pair.conditions):
        for look in _LOOKS.get(place.node.__class__, ()):
            yield from look(pair, place)
