"""What one use, or one rule, contributes to one capability."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce

from backend_caps.capability.declaration import Declaration, When
from backend_caps.capability.facts import Situation, Truth
from backend_caps.capability.fit import text_of
from backend_caps.capability.kind import Kind, Phase
from backend_caps.capability.provenance import Origin
from backend_caps.capability.vocabulary import CAPABILITIES
from backend_caps.resolution.plan import Cause, CauseKind
from backend_caps.resolution.rules import Rule
from backend_caps.resolution.uses import Use

Stated = tuple[object, Origin, str]
"""A value, how it came to be, and why."""


def cause_of_use(use: Use, capability: str, situation: Situation) -> Cause | None:
    """Say what a use contributes; nothing where a composite leaves it to its parts."""
    kind = CAPABILITIES[capability]
    own = {**situation, "role": use.role, "phase": use.phase}
    if use.declaration is None:
        assert use.problem is not None, f"use of {use.backend} has neither declaration nor problem"
        return _cause(use, (kind.worst, Origin.MISSING, use.problem.message), own)
    if use.adds_only:
        added = _added(use.declaration, capability, own)
        return _cause(use, _joined(kind, added), own) if added else None
    stated = declared(use.declaration, capability, own)
    if kind.requires is not None:
        stated = _unless_required(use.declaration, capability, stated, own)
    return _cause(use, _unverified(use, capability, _inherited(use, capability, stated)), own)


def _unverified(use: Use, capability: str, stated: Stated) -> Stated:
    """Say of what was taken out for want of evidence that it was there."""
    value, origin, _ = stated
    if origin is not Origin.UNDECLARED or capability not in use.unverified:
        return stated
    return value, Origin.UNVERIFIED, use.unverified[capability].words


def _inherited(use: Use, capability: str, stated: Stated) -> Stated:
    """Say of what the class leaves to its base that it does; it counts as undeclared."""
    value, origin, _ = stated
    reading = use.readings.get(capability)
    if origin is not Origin.UNDECLARED or reading is None:
        return stated
    if reading.origin is not Origin.INHERITED:
        return stated
    base = f" of {reading.inherited_from}" if reading.inherited_from else ""
    words = f"inherits {reading.words}{base}, and does not state it again: counts as undeclared"
    return value, reading.origin, words


def _added(declaration: Declaration, capability: str, situation: Situation) -> list[Stated]:
    """List what a composite adds; to deny what a capability requires is to deny it."""
    kind = CAPABILITIES[capability]
    added = _said(declaration, capability, situation)
    required = [] if kind.requires is None else _said(declaration, kind.requires, situation)
    denied = [each for each in required if each[0] != CAPABILITIES[str(kind.requires)].best]
    return [*added, *((kind.worst, origin, reason) for _, origin, reason in denied)]


def declared(declaration: Declaration, capability: str, situation: Situation) -> Stated:
    """Evaluate a declaration: the base, or what conditions put in its place.

    Where a condition is open, the value covers both ways. What nobody stated is the worst
    value; this is the one place where `UNDECLARED` becomes a value.
    """
    kind = CAPABILITIES[capability]
    said = _said(declaration, capability, situation)
    if all(origin is Origin.UNDECIDED for _, origin, _ in said):
        unsaid = kind.worst, Origin.UNDECLARED, f"does not declare {capability}"
        said = [unsaid, *said]
    return _joined(kind, said)


def _said(declaration: Declaration, capability: str, situation: Situation) -> list[Stated]:
    """List what is stated: the base or the conditions that hold, then those that are open."""
    whens = [when for when in declaration.conditions if capability in when.capabilities.stated()]
    truths = [(when, when.given.truth(situation)) for when in whens]
    holding = [_conditional(when, capability) for when, truth in truths if truth is Truth.TRUE]
    open_ = [_open(when, capability) for when, truth in truths if truth is Truth.UNKNOWN]
    return [*(holding or _base(declaration, capability)), *open_]


def _base(declaration: Declaration, capability: str) -> list[Stated]:
    stated = declaration.capabilities.stated()
    if capability not in stated:
        return []
    value = stated[capability]
    return [(value, Origin.DECLARED, f"declares {capability}={text_of(value)}")]


def _conditional(when: When, capability: str) -> Stated:
    value = when.capabilities.stated()[capability]
    return value, Origin.CONDITIONAL, f"{when.reason} ({when.given})"


def _open(when: When, capability: str) -> Stated:
    value = when.capabilities.stated()[capability]
    return value, Origin.UNDECIDED, f"{when.reason} (not known yet: {when.given})"


def _joined(kind: Kind, said: list[Stated]) -> Stated:
    return reduce(lambda one, other: _both(kind, one, other), said)


def _both(kind: Kind, one: Stated, other: Stated) -> Stated:
    """Join two; the words are those of the one that gives the value, the later on a tie."""
    value = kind.join(one[0], other[0])
    if value == one[0] and value != other[0]:
        return one
    if value == other[0]:
        return other
    return value, other[1], f"{one[2]}; {other[2]}"


def _unless_required(
    declaration: Declaration, capability: str, stated: Stated, situation: Situation
) -> Stated:
    kind = CAPABILITIES[capability]
    required = kind.requires
    assert required is not None, f"{capability} requires nothing"
    if stated[0] == kind.worst:
        return stated
    value, origin, _ = declared(declaration, required, situation)
    if value == CAPABILITIES[required].best:
        return stated
    words = f"declares {capability}={text_of(stated[0])}, but not {required}, which it needs"
    return kind.worst, origin, words


def _cause(use: Use, stated: Stated, situation: Situation) -> Cause:
    value, origin, reason = stated
    unknown = [str(each) for each in use.conditions if each.truth(situation) is Truth.UNKNOWN]
    if unknown:
        reason = f"{reason} (used where {' and '.join(unknown)}: not known yet)"
    if use.by_auto:
        reason = f"{reason} (chosen by {use.slot} auto)"
    return Cause(
        kind=CauseKind.BACKEND,
        name=use.backend,
        role=use.role,
        phase=use.phase,
        value=value,
        reason=reason,
        origin=origin,
        source=use.source,
        via=use.composites,
    )


def causes_of_rule(
    rule: Rule, capability: str, phase: Phase | None, situation: Situation
) -> Iterator[Cause]:
    """Say what a rule forces; while its condition is open, it counts."""
    forced = rule.forces.stated()
    if capability not in forced:
        return
    own = situation if phase is None else {**situation, "phase": phase}
    truth = rule.truth(own)
    if truth is Truth.FALSE:
        return
    known = truth is Truth.TRUE
    yield Cause(
        kind=CauseKind.RULE,
        name=rule.name,
        phase=phase,
        value=forced[capability],
        reason=f"{rule.reason} ({'' if known else 'not known yet: '}{rule.given})",
        origin=Origin.FORCED if known else Origin.UNDECIDED,
    )
