"""The names of an engine that a plugin imports, reads and patches."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from backend_caps.compatibility.contact import Contact, Verdict
from backend_caps.compatibility.pair import Pair, imported
from backend_caps.compatibility.places import Place
from backend_caps.engines.source.guards import Function, condition
from backend_caps.engines.source.index import FunctionDef
from backend_caps.engines.source.module import ClassDef, Module

_CATCHES_LOSS = frozenset({"ImportError", "ModuleNotFoundError", "Exception", "AttributeError"})
_OF_VERDICT = {True: Verdict.HOLDS, None: Verdict.NOT_CHECKED, False: Verdict.BREAKS}


def imports(pair: Pair, place: Place) -> Iterator[Contact]:
    """Look for what an import names."""
    node = place.node
    if not isinstance(node, ast.Import | ast.ImportFrom):
        return
    for name, own in imported(node, place.module):
        if own.module.partition(".")[0] != pair.engine or own.attribute == "*":
            continue
        whole = own.module if own.attribute is None else f"{own.module}.{own.attribute}"
        is_there: bool | None = pair.is_module(own.module)
        if is_there and own.attribute is not None:
            is_there = pair.has(own.module, own.attribute)
        if is_there is False and _is_built(whole):
            is_there = None
        verdict, why = _OF_VERDICT[is_there], ""
        if verdict is Verdict.BREAKS:
            handler = _catching(place)
            if handler is not None:
                verdict = Verdict.HOLDS if _binds(handler, name) else Verdict.HIDDEN
            lost = own.module if not pair.is_module(own.module) else whole
            why = f"{lost} is not there"
        yield Contact(
            verdict=verdict,
            what=f"import of {whole}",
            at=place.at,
            why=why,
            given=condition(place.guards),
            remedy="" if verdict.is_fine else _where_now(pair, own.attribute),
        )


def _is_built(whole: str) -> bool:
    """Return whether a name is of a compiled module, or of one that a build writes."""
    return any(each.startswith("_") for each in whole.split(".")[1:2]) or whole.endswith(
        ("._version", ".version")
    )


def _catching(place: Place) -> ast.ExceptHandler | None:
    """Return the innermost handler that catches the loss of a name."""
    for _, handler in reversed(place.caught):
        kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
        names = {"Exception" if each is None else ast.unparse(each) for each in kinds}
        if names & _CATCHES_LOSS:
            return handler
    return None


def _binds(handler: ast.ExceptHandler, name: str) -> bool:
    """Return whether a handler gives a name something else."""
    for node in ast.walk(handler):
        match node:
            case ast.alias() if (node.asname or node.name) == name:
                return True
            case ast.Name(id=own, ctx=ast.Store()) if own == name:
                return True
            case ast.FunctionDef(name=own) | ast.ClassDef(name=own) if own == name:
                return True
    return False


def _where_now(pair: Pair, name: str | None) -> str:
    """Say where the engine has a name that was lost."""
    if name is None:
        return ""
    for path in pair.defining.get(name, ()):
        module = pair.index.parse(path)
        if module is not None and name in module.scope:
            return f"from {module.name} import {name}"
    return ""


def reads(pair: Pair, place: Place) -> Iterator[Contact]:
    """Look for an attribute that the plugin reads of a module or a class of the engine."""
    match place.node:
        case ast.Attribute(value=owner, attr=name, ctx=ast.Load()) if not name.startswith("__"):
            pass
        case _:
            return
    for target in pair.resolve(owner, place):
        match target:
            case Module(name=source, path=path) if pair.is_engines(path):
                is_there = pair.has(source, name)
                whole = f"{source}.{name}"
            case ClassDef() if pair.is_engines(target.module.path):
                is_there = pair.has_member(target, name)
                whole = f"{target.name}.{name}"
            case _:
                continue
        if is_there is False and (_is_built(whole) or pair.is_set(name)):
            is_there = None
        verdict = _OF_VERDICT[is_there]
        if verdict is Verdict.BREAKS and _catching(place) is not None:
            verdict = Verdict.HIDDEN
        yield Contact(
            verdict=verdict,
            what=f"read of {whole}",
            at=place.at,
            why="" if verdict.is_fine else f"{whole} is not there",
            given=condition(place.guards),
        )
        return


def patches(pair: Pair, place: Place) -> Iterator[Contact]:
    """Look for what the plugin puts something else in place of."""
    match place.node:
        case ast.Assign(targets=[ast.Attribute(value=owner, attr=name)], value=value):
            pass
        case ast.Call(
            func=ast.Name(id="setattr"), args=[owner, ast.Constant(value=str(name)), value]
        ):
            pass
        case _:
            return
    for target in pair.resolve(owner, place):
        match target:
            case Module(name=source, path=path) if pair.is_engines(path):
                is_there, whole = pair.has(source, name), f"{source}.{name}"
            case ClassDef() if pair.is_engines(target.module.path):
                is_there, whole = pair.has_member(target, name), f"{target.name}.{name}"
            case _:
                continue
        verdict, why = _OF_VERDICT[is_there], ""
        if verdict is Verdict.BREAKS:
            verdict = Verdict.UNUSED
            why = f"{whole} is not there, so nothing of the engine calls what is put there"
            if pair.is_read(name):
                verdict = Verdict.HOLDS  # it adds an attribute that something reads
        yield Contact(
            verdict=verdict, what=f"patch of {whole}", at=place.at, why=why,
            given=condition(place.guards),
        )
        yield from _replacing(pair, place, target, name, value)
        return


def _replacing(
    pair: Pair, place: Place, owner: Module | ClassDef, name: str, value: ast.expr
) -> Iterator[Contact]:
    """Compare a function that is put in place of another with how the engine calls that one."""
    from backend_caps.compatibility.overrides import compared  # noqa: PLC0415

    for target in pair.resolve(value, place):
        if isinstance(target, FunctionDef) and not pair.is_engines(target.module.path):
            yield from compared(pair, target, owner, name)
            return


def function_of(pair: Pair, owner: Module | ClassDef, name: str) -> Function | None:
    """Return the engine's function of a name."""
    if isinstance(owner, ClassDef):
        definer = pair.classes.definer(owner, name)
        return None if definer is None else definer.methods[name]
    for _, meaning in owner.scope.get(name, ()):
        if isinstance(meaning, Function):
            return meaning
    return None
