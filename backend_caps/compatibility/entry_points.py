"""The entry points by which an engine loads a plugin."""

from __future__ import annotations

from collections.abc import Iterator

from backend_caps.compatibility.contact import Contact, ContactKind, Verdict
from backend_caps.compatibility.pair import Pair
from backend_caps.compatibility.plugin import EntryPoint


def entry_points(pair: Pair) -> Iterator[Contact]:
    """Look for what the entry points name, and for the engine's reading of their groups."""
    for each in pair.plugin.entry_points:
        if each.group.partition(".")[0] == pair.engine:
            yield _checked(pair, each)


def _checked(pair: Pair, point: EntryPoint) -> Contact:
    is_there = _is_there(pair, point)
    verdict, why = Verdict.of(is_there), ""
    if is_there is None:
        why = f"{point.value} is of another distribution, or made at run time"
    elif not is_there:
        why = f"{point.value} is not there, so that the engine cannot load it"
    elif not any(pair.texts.engine_files(point.group)):
        verdict, why = Verdict.UNUSED, f"the engine looks for no group {point.group!r}"
    return Contact(
        kind=ContactKind.ENTRY_POINT,
        verdict=verdict,
        what=f"{point.group}:{point.name}",
        at=point.at,
        why=why,
    )


def _is_there(pair: Pair, point: EntryPoint) -> bool | None:
    """Return whether an entry point's module has what it names; None for another's module."""
    if point.module.partition(".")[0] not in pair.plugin.packages:
        return None
    is_module = pair.is_module(point.module)
    name, _, inner = point.attribute.partition(".")
    is_there = pair.has(point.module, name) if is_module and name else is_module
    return None if is_there and inner else is_there
