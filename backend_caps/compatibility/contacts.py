"""The points at which a plugin meets an engine, each with whether it holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from backend_caps.compatibility import attributes, calls, names, overrides
from backend_caps.compatibility.contact import Contact, Verdict
from backend_caps.compatibility.pair import Pair
from backend_caps.compatibility.places import Places

_AT_PLACES = (
    names.imports,
    names.reads,
    names.patches,
    calls.calls,
    calls.unpackings,
    attributes.instance_reads,
)
_OF_CLASSES = (
    overrides.overrides,
    overrides.constructors,
    overrides.hooks,
    overrides.duck_typed,
    attributes.left_out,
)


def contacts(pair: Pair) -> list[Contact]:
    """List the points of contact of a plugin with an engine, each once."""
    return list(dict.fromkeys(_found(pair)))


def _found(pair: Pair) -> Iterator[Contact]:
    for module in pair.modules():
        for place in Places(module, pair.truth):
            for check in _AT_PLACES:
                yield from check(pair, place)
        for definition in module.classes:
            for check_class in _OF_CLASSES:
                yield from check_class(pair, definition)


def brought(old: Sequence[Contact], new: Sequence[Contact]) -> Iterator[Contact]:
    """List what an upgrade of the engine changes for a plugin.

    Args:
        old: its points of contact with the version before.
        new: those with the version after.
    """
    before = {each.key: each for each in old}
    for each in new:
        earlier = before.get(each.key)
        if earlier is None:
            if not each.verdict.is_fine:
                yield each
        elif each.verdict is not earlier.verdict and not each.verdict.is_fine:
            yield each
        elif each.bound != earlier.bound and _is_shifted(earlier.bound, each.bound):
            words = f"was given {', '.join(earlier.bound)} by place, and now {', '.join(each.bound)}"
            yield replace(each, verdict=Verdict.BREAKS, why=words)
    yield from _gone(old, new)


def _is_shifted(before: Sequence[str], after: Sequence[str]) -> bool:
    """Return whether an argument by place goes to a parameter that stood elsewhere."""
    pairs = zip(before, after, strict=False)
    return any(one != other and (one in after or other in before) for one, other in pairs)


def _gone(old: Iterable[Contact], new: Iterable[Contact]) -> Iterator[Contact]:
    """List the methods that took the place of one that the engine no longer has."""
    there = {each.what for each in new}
    for each in old:
        if each.is_override and each.what not in there:
            yield replace(
                each, verdict=Verdict.UNUSED, why="the engine has no such method any more"
            )
