"""The names of an engine that a plugin imports and reads."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from backend_caps.compatibility.attributes import is_assigned
from backend_caps.compatibility.contact import (
    ASSIGNED_ELSEWHERE,
    Contact,
    ContactKind,
    Form,
    Verdict,
)
from backend_caps.compatibility.decorators import is_property, keeps_signature
from backend_caps.compatibility.instances import class_around
from backend_caps.compatibility.nodes import walk
from backend_caps.compatibility.pair import Pair
from backend_caps.compatibility.places import Place, caught_by
from backend_caps.engines.source.guards import condition
from backend_caps.engines.source.index import FunctionDef
from backend_caps.engines.source.module import ClassDef, Module

_CATCHING = frozenset(
    {"ImportError", "ModuleNotFoundError", "AttributeError", "Exception", "BaseException"}
)
_OPEN = "it may be compiled, left out of this source, or made at run time"
_BUILT = ("_version", "version", "commit_id")
"""Modules that a build writes, so that a checkout or an sdist may lack them."""


def imports(pair: Pair, place: Place) -> Iterator[Contact]:
    """Look for what an import names."""
    match place.node:
        case ast.ImportFrom() as node:
            source = place.module.absolute(node)
            if source.partition(".")[0] == pair.engine:
                for alias in node.names:
                    yield _imported(pair, place, source, alias)
        case ast.Import() as node:
            for alias in node.names:
                if alias.name.partition(".")[0] == pair.engine:
                    yield _imported(pair, place, alias.name, alias, is_module=True)


def _imported(
    pair: Pair, place: Place, source: str, alias: ast.alias, *, is_module: bool = False
) -> Contact:
    whole = source if is_module or alias.name == "*" else f"{source}.{alias.name}"
    is_there: bool | None = pair.is_module(source)
    if is_there and whole != source:
        is_there = pair.has(source, alias.name)
    remedy = _import_of(pair, alias.name) if is_there is False and whole != source else ""
    if is_there is False and (is_built(whole) or (not remedy and _is_left_out(pair, source))):
        is_there = None
    verdict, why = Verdict.of(is_there), ""
    if verdict is Verdict.BREAKS:
        lost = whole if pair.is_module(source) else source
        why = f"{lost} is not there"
        if (handler := catching(place)) is not None:
            is_replaced = _replaces(handler, alias.asname or alias.name, pair.engine)
            verdict = Verdict.HOLDS if is_replaced else Verdict.CHANGED
            why = "" if is_replaced else f"{why}, and line {handler.lineno} catches the error"
    return Contact(
        kind=ContactKind.IMPORT,
        verdict=verdict,
        what=whole,
        at=f"{place.module.path}:{alias.lineno}",
        why="it may be compiled, left out of this source, or made at run time"
        if is_there is None
        else why,
        given=condition(place.guards),
        remedy=remedy if verdict.is_finding else "",
    )


def _is_left_out(pair: Pair, source: str) -> bool:
    """Return whether the engine itself imports a module that its source does not have."""
    return not pair.is_module(source) and pair.texts.is_imported(source)


def is_built(whole: str) -> bool:
    """Return whether a dotted name is in a compiled module, or in one that a build writes."""
    parts = whole.split(".")[1:]
    return any(each.startswith("_C") or each.endswith("_C") for each in parts) or any(
        each in _BUILT for each in parts[-2:]
    )


def catching(place: Place) -> ast.ExceptHandler | None:
    """Return the innermost handler that catches the loss of a name."""
    for handler in reversed(place.handlers):
        if caught_by(handler) & _CATCHING:
            return handler
    return None


def _replaces(handler: ast.ExceptHandler, name: str, engine: str) -> bool:
    """Return whether a handler gives a name another value, or imports another of the engine's."""
    for node in walk(handler):
        match node:
            case ast.ImportFrom(module=str(source)) if source.partition(".")[0] == engine:
                return True
            case ast.alias() if (node.asname or node.name) == name:
                return True
            case ast.Name(id=own, ctx=ast.Store()) if own == name:
                return True
            case ast.FunctionDef(name=own) | ast.ClassDef(name=own) if own == name:
                return True
    return False


def _import_of(pair: Pair, name: str) -> str:
    """Write the import of a name from where the engine defines it, if one module does."""
    words = f"class {name}", f"def {name}(", f"{name} ="
    paths = {path for text in words for path in pair.texts.engine_files(text)}
    found = [each for each in pair.index.modules(sorted(paths)) if name in each.scope]
    return f"from {found[0].name} import {name}" if len(found) == 1 else ""


def reads(pair: Pair, place: Place) -> Iterator[Contact]:
    """Look for an attribute that the plugin reads of a module, a class or an object."""
    match place.node:
        case ast.Attribute(value=owner, attr=name, ctx=ast.Load()) if not name.startswith("__"):
            pass
        case _:
            return
    for target in pair.resolve(owner, place):
        match target:
            case Module(name=source, path=path) if pair.is_engines(path):
                whole = f"{source}.{name}"
                is_there = None if is_built(whole) else pair.has(source, name)
                yield _read(pair, place, whole, is_there, None)
                return
            case ClassDef() if pair.is_engines(target.module.path):
                whole, is_there = f"{target.name}.{name}", pair.has_member(target, name)
                yield _read(pair, place, whole, is_there, target)
                return
    for definition in _owners(pair, owner, place):
        whole, is_there = f"{definition.name}.{name}", pair.has_member(definition, name)
        yield _read(pair, place, whole, is_there, definition)
        return


def _owners(pair: Pair, owner: ast.expr, place: Place) -> Iterator[ClassDef]:
    """List the classes of an object whose attribute is read, those with a class of the engine."""
    if isinstance(owner, ast.Name) and owner.id == "cls":
        around = class_around(place)
        found = [] if around is None else [around]
    else:
        found = pair.instances.classes(owner, place)
    for each in found:
        if pair.is_engines(each.module.path) or pair.engine_bases(each):
            yield each


def _read(
    pair: Pair, place: Place, whole: str, is_there: bool | None, owner: ClassDef | None
) -> Contact:
    name = whole.rpartition(".")[2]
    is_given = is_there is False and _may_be_given(pair, owner, name)
    is_there = None if is_given else is_there
    verdict = Verdict.of(is_there)
    handler = catching(place) if verdict is Verdict.BREAKS else None
    unknown = ASSIGNED_ELSEWHERE if is_given else "only running code knows it"
    why = {True: "", False: f"{whole} is not there", None: unknown}[is_there]
    if handler is not None:
        verdict = Verdict.CHANGED
        why = f"{why}, and line {handler.lineno} catches the error"
    return Contact(
        kind=ContactKind.READ,
        verdict=verdict,
        what=whole,
        at=place.at,
        why=why,
        engine_at=None if owner is None else pair.engine_at(owner),
        given=condition(place.guards),
        form=None if owner is None else _form(pair, owner, name),
    )


def _form(pair: Pair, owner: ClassDef, name: str) -> Form | None:
    """Return whether a member of a class is read or called; a name's value may be either."""
    for base in pair.classes.ancestors(owner):
        if (method := base.methods.get(name)) is not None:
            if is_property(method):
                return Form.VALUE
            is_plain = keeps_signature(pair, FunctionDef(base.module, method, base))
            return Form.CALLED if is_plain else None
        if name in base.statements:
            values = [each.value for each in base.statements[name]]
            return Form.VALUE if all(isinstance(e, ast.Constant) for e in values) else None
    return None


def _may_be_given(pair: Pair, owner: ClassDef | None, name: str) -> bool:
    """Return whether something may assign an attribute, or a subclass may have it."""
    if name in pair.texts.asked_for or is_assigned(pair, owner, name):
        return True
    if owner is None:
        return False
    order = pair.classes.ancestors(owner)
    if not any(e.methods or e.statements or pair.members(e) - {e.name} for e in order):
        return True  # a class without any attribute stands for what the plugin puts there
    others = pair.subclasses(owner)
    return pair.replacements.adds(owner, name) or any(
        pair.has_member(each, name) is not False for each in others
    )
