"""What an upgrade of an engine changes of a plugin's points of contact."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from backend_caps.compatibility.contact import ASSIGNED_ELSEWHERE, Contact, ContactKind, Verdict


def brought(old: Sequence[Contact], new: Sequence[Contact]) -> Iterator[Contact]:
    """List what an upgrade of the engine changes for a plugin.

    Args:
        old: its points of contact with the version before.
        new: those with the version after.
    """
    before = {each.key: each for each in old}
    flipped: dict[tuple[str, str], Contact] = {}
    for each in new:
        if (found := _changed(before.get(each.key), each)) is not None:
            yield found
        elif each.key in before:
            for other in _flipped(before[each.key], each):
                flipped.setdefault((other.what, other.why), other)
    # A default that many calls leave out counts once, at the first of them.
    yield from flipped.values()
    yield from _dropped(old, new)


def _flipped(before: Contact, after: Contact) -> Iterator[Contact]:
    """List the values that are others now, where the plugin states none of its own."""
    for name, value in _others(before.defaults, after.defaults):
        why = f"{name} is left out; it was {value[0]} then, and is {value[1]} now"
        yield replace(after, verdict=Verdict.CHANGED, why=why)
    for name, value in _others(before.values, after.values):
        yield Contact(
            kind=ContactKind.MEMBER,
            verdict=Verdict.CHANGED,
            what=f"{after.what}.{name}",
            at=after.at,
            why=f"the engine's value was {value[0]}, and is {value[1]} now",
        )


def _others(
    old: Sequence[tuple[str, str]], new: Sequence[tuple[str, str]]
) -> Iterator[tuple[str, tuple[str, str]]]:
    """List what has another value, by its name, with both."""
    before = dict(old)
    for name, value in new:
        if before.get(name, value) != value:
            yield name, (before[name], value)


def _changed(before: Contact | None, after: Contact) -> Contact | None:
    """Return the finding on a point of contact that holds no more; None where it does."""
    if after.kind is ContactKind.MEMBER and before is None:
        is_open = after.verdict is Verdict.NOT_CHECKED
        after = replace(after, verdict=Verdict.CHANGED) if is_open else after
        return after if after.verdict.is_finding else None
    if after.verdict.is_finding:
        return after if before is None or before.verdict is not after.verdict else None
    if before is not None and (why := _other_form(before, after) or _shifted(before, after)):
        return replace(after, verdict=Verdict.BREAKS, why=why)
    if before is not None and after.kind is ContactKind.READ and _is_lost(before, after):
        why = f"nothing states it any more; {ASSIGNED_ELSEWHERE}"
        return replace(after, verdict=Verdict.CHANGED, why=why)
    return None


def _is_lost(before: Contact, after: Contact) -> bool:
    # Of a class whose base is lost, which is a finding of its own, nothing is known.
    is_open = after.verdict is Verdict.NOT_CHECKED and after.why == ASSIGNED_ELSEWHERE
    return before.verdict is Verdict.HOLDS and is_open


def _dropped(old: Sequence[Contact], new: Sequence[Contact]) -> Iterator[Contact]:
    """List the overrides of what the engine has no more, in classes that still derive from it."""
    # A method of a class may stand in two branches, of which the engine's version takes one.
    kept = {(each.what, each.owner_at) for each in new}
    derived = {each.at: each for each in new if each.kind is ContactKind.CLASS}
    before = {each.at: each for each in old if each.kind is ContactKind.CLASS}
    successors: dict[str, Contact] = {}
    for each in old:
        if each.owner_at not in derived or (each.what, each.owner_at) in kept:
            continue
        # A branch for the version before defines it; with the new one, the class is without.
        if each.what.rpartition(".")[2] in derived[each.owner_at].own:
            why = "the engine has no such method any more"
            yield replace(each, verdict=Verdict.UNUSED, why=why)
            owner, earlier = derived[each.owner_at], before[each.owner_at]
            name = each.what.rpartition(".")[2]
            for other in sorted({*owner.inherited} - {*earlier.inherited, *earlier.called_of_self}):
                if _is_alike(name, other):
                    what = f"{owner.what}.{other}"
                    successors[what] = _successor(owner, what, name)
    yield from successors.values()


def _is_alike(name: str, other: str) -> bool:
    """Return whether a method's name has at least half of the words of another's."""
    words = {*name.split("_")} - {""}
    return 2 * len(words & {*other.split("_")}) >= len(words)


def _successor(owner: Contact, what: str, dropped: str) -> Contact:
    return Contact(
        kind=ContactKind.MEMBER,
        verdict=Verdict.CHANGED,
        what=what,
        at=owner.at,
        why=f"the engine calls it now, and {dropped} no more",
        remedy="define it, if what the base does is not enough",
    )


def _other_form(before: Contact, after: Contact) -> str | None:
    """Say that a property became a method, or that what was called is awaited now."""
    if before.form is None or after.form is None or before.form is after.form:
        return None
    return f"it was {before.form.value}, and is {after.form.value}"


def _shifted(before: Contact, after: Contact) -> str | None:
    """Say that an argument by position goes to a parameter that stood elsewhere.

    A parameter that has another name alone stands nowhere else, before or after.
    """
    old, new = {*before.parameters, *before.others}, {*after.parameters, *after.others}
    pairs = zip(before.parameters, after.parameters, strict=False)
    if not any(one != other and (one in new or other in old) for one, other in pairs):
        return None
    one, other = ", ".join(before.parameters), ", ".join(after.parameters)
    return f"its arguments by position went to {one}, and go to {other}"
