"""The points at which a plugin meets an engine, and what an upgrade changes of them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from backend_caps.compatibility.attributes import left_out
from backend_caps.compatibility.calls import calls, unpackings
from backend_caps.compatibility.contact import Contact, ContactKind, Verdict
from backend_caps.compatibility.entry_points import entry_points
from backend_caps.compatibility.names import imports, reads
from backend_caps.compatibility.overrides import hooks, overrides
from backend_caps.compatibility.pair import Pair
from backend_caps.compatibility.patches import patches
from backend_caps.compatibility.paths import class_paths
from backend_caps.compatibility.places import Places
from backend_caps.compatibility.registration import Registrations
from backend_caps.engines.source.module import Module


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
    calls = (each.engine_at for each in found if each.kind is ContactKind.CALL)
    called = frozenset(filter(None, calls))
    for module in modules:
        for definition in pair.plugin_classes(module):
            yield from overrides(pair, definition)
            yield from hooks(pair, definition, called)
            yield from left_out(pair, definition)
            yield from registrations.constructors(definition)
            yield from registrations.members(definition)


def _at_places(pair: Pair, module: Module) -> Iterator[Contact]:
    for place in Places(module, pair.conditions):
        for look in (imports, class_paths, reads, patches, calls, unpackings):
            yield from look(pair, place)


def brought(old: Sequence[Contact], new: Sequence[Contact]) -> Iterator[Contact]:
    """List what an upgrade of the engine changes for a plugin.

    Args:
        old: its points of contact with the version before.
        new: those with the version after.
    """
    before = {each.key: each for each in old}
    for each in new:
        earlier = before.get(each.key)
        if each.kind is ContactKind.MEMBER and earlier is None:
            is_open = each.verdict is Verdict.NOT_CHECKED
            yield replace(each, verdict=Verdict.CHANGED) if is_open else each
        elif each.verdict.is_finding:
            if earlier is None or earlier.verdict is not each.verdict:
                yield each
        elif earlier is not None and (why := _other_form(earlier, each)):
            yield replace(each, verdict=Verdict.BREAKS, why=why)
        elif earlier is not None and _is_shifted(earlier, each):
            one, other = ", ".join(earlier.parameters), ", ".join(each.parameters)
            why = f"its arguments by position went to {one}, and go to {other}"
            yield replace(each, verdict=Verdict.BREAKS, why=why)
    kept = {(each.kind, each.what) for each in new}
    for each in old:
        if each.what.startswith("patch of "):
            continue  # the assignment itself is found
        if each.kind is ContactKind.OVERRIDE and (each.kind, each.what) not in kept:
            yield replace(
                each, verdict=Verdict.UNUSED, why="the engine has no such method any more"
            )


def _other_form(before: Contact, after: Contact) -> str | None:
    """Say that a property became a method, or that what was called is awaited now."""
    if before.form is None or after.form in {None, before.form}:
        return None
    assert after.form is not None, "it is in the set"
    return f"it was {before.form.value}, and is {after.form.value}"


def _is_shifted(before: Contact, after: Contact) -> bool:
    """Return whether an argument by position goes to a parameter that stood elsewhere.

    A parameter that has another name alone stands nowhere else, before or after.
    """
    old, new = {*before.parameters, *before.others}, {*after.parameters, *after.others}
    pairs = zip(before.parameters, after.parameters, strict=False)
    return any(one != other and (one in new or other in old) for one, other in pairs)
