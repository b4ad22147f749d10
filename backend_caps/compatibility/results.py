"""What a plugin's functions return, beside what an engine makes of it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from backend_caps.compatibility.contact import Contact, ContactKind, Verdict
from backend_caps.compatibility.pair import Pair
from backend_caps.compatibility.signatures import result_lengths
from backend_caps.compatibility.sites import Site
from backend_caps.engines.source.guards import Function
from backend_caps.engines.source.index import External, FunctionDef
from backend_caps.engines.source.module import ClassDef, Module

_SCALARS = frozenset({"None", "float", "int", "bool", "str"})


def results(
    pair: Pair,
    what: str,
    function: FunctionDef,
    sites: list[Site],
    base: Function | None,
    base_module: Module,
) -> Iterator[Contact]:
    """Compare what a function returns with what is unpacked, and with the base's annotation."""
    for site in sites:
        if unpacks_other(site, function.node):
            words = " or ".join(map(str, sorted(result_lengths(function.node))))
            yield _result(
                what,
                function,
                f"returns {words} values; {site.caller} unpacks {site.unpacked}",
                site.at,
            )
            return
    own, wanted = function.node.returns, None if base is None else base.returns
    if base is None or own is None or wanted is None:
        return
    if _names_no_class(pair, wanted, base_module):
        return  # another name for a type, as of the texts that a method may return
    if _is_other(ast.unparse(own), ast.unparse(wanted)) and _is_used(pair, function):
        yield _result(
            what,
            function,
            f"returns {ast.unparse(own)}; the engine takes {ast.unparse(wanted)}",
            base_module.at(base),
        )


def _names_no_class(pair: Pair, annotation: ast.expr, module: Module) -> bool:
    """Return whether an annotation is a name of something else: of a `Literal`, or of `str`."""
    if not isinstance(annotation, ast.Name) or annotation.id in _SCALARS:
        return False
    found = [target for _, target in pair.index.resolve(annotation, module)]
    classes = [each for each in found if isinstance(each, ClassDef | External)]
    builtins = (isinstance(e, External) and e.path.startswith("builtins.") for e in classes)
    return not classes or any(builtins)


def unpacks_other(site: Site, function: Function) -> bool:
    """Return whether a call unpacks a number of values that a function does not return."""
    if site.unpacked is None:
        return False
    lengths = result_lengths(function)
    return bool(lengths) and site.unpacked not in lengths


def _is_used(pair: Pair, function: FunctionDef) -> bool:
    """Return whether the engine uses a result; it may call the function by its name's text.

    The base's annotation holds for each call of a name, whatever it is called of.
    """
    name = function.node.name
    return name in pair.texts.quoted or any(each.is_used for each in pair.sites(name))


def _result(what: str, function: FunctionDef, why: str, engine_at: str) -> Contact:
    return Contact(
        kind=ContactKind.RESULT,
        verdict=Verdict.BREAKS,
        what=what,
        at=function.at,
        why=why,
        engine_at=engine_at,
    )


def _is_other(own: str, wanted: str) -> bool:
    """Return whether annotations state different values: a scalar for another, or other tuples."""
    own, wanted = own.strip("'\""), wanted.strip("'\"")
    if own == wanted or "Any" in {own, wanted} or wanted.startswith("Optional"):
        return False
    alternatives = {each.strip() for each in wanted.split("|")}
    if own in _SCALARS:
        return own not in alternatives and "object" not in alternatives
    ours, theirs = _elements(own), _elements(wanted)
    if ours is None or theirs is None or not theirs.is_fixed:
        return False
    if ours.is_fixed:
        return len(ours.kinds) != len(theirs.kinds)
    # `tuple[T, ...]`, where one of the engine's elements is a scalar and T is none.
    return any(each in _SCALARS for each in theirs.kinds) and ours.kinds[0] not in _SCALARS


class _Elements(NamedTuple):
    kinds: tuple[str, ...]
    is_fixed: bool
    """Whether the tuple has just these; `tuple[T, ...]` has any number."""


def _elements(annotation: str) -> _Elements | None:
    """Return the elements of a tuple's annotation; None for another one."""
    match ast.parse(annotation, mode="eval").body:
        case ast.Subscript(value=ast.Name(id="tuple" | "Tuple"), slice=ast.Tuple(elts=parts)):
            kinds = tuple(ast.unparse(each) for each in parts)
            return _Elements(kinds, is_fixed="..." not in kinds)
    return None
