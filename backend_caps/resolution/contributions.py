"""What one use, or one rule, contributes to one capability."""

from __future__ import annotations

from functools import reduce

from backend_caps.capability.declaration import Declaration
from backend_caps.capability.facts import Situation, Truth
from backend_caps.capability.fit import text_of
from backend_caps.capability.kind import UNDECLARED, Kind, Phase
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
    own = use.placed(situation)
    if use.declaration is None:
        assert use.problem is not None, f"use of {use.backend} has neither declaration nor problem"
        return _cause(use, (kind.worst, Origin.MISSING, use.problem.message), own)
    if use.adds_only:
        added = _added(use.declaration, capability, own)
        return _cause(use, _joined(kind, added), own) if added else None
    stated = declared(use.declaration, capability, own)
    if kind.requires is not None and stated[0] != kind.worst:
        stated = _if_required(use.declaration, capability, kind.requires, stated, own)
    return _cause(use, _explained(use, capability, stated), own)


def _explained(use: Use, capability: str, stated: Stated) -> Stated:
    """Say why something counts as undeclared: its class inherits it, or evidence is missing."""
    value, origin, _ = stated
    reading = use.readings.get(capability)
    if origin is not Origin.UNDECLARED:
        return stated
    if reading is not None and reading.origin is Origin.INHERITED:
        base = f" of {reading.inherited_from}" if reading.inherited_from else ""
        words = f"inherits {reading.words}{base}, and does not state it again: counts as undeclared"
        return value, Origin.INHERITED, words
    if capability in use.unverified:
        return value, Origin.UNVERIFIED, use.unverified[capability].words
    return stated


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
    holding: list[Stated] = []
    undecided: list[Stated] = []
    for when in declaration.conditions:
        value = getattr(when.capabilities, capability)
        truth = Truth.FALSE if value is UNDECLARED else when.given.truth(situation)
        if truth is Truth.TRUE:
            holding.append((value, Origin.CONDITIONAL, f"{when.reason} ({when.given})"))
        elif truth is Truth.UNKNOWN:
            words = f"{when.reason} (not known yet: {when.given})"
            undecided.append((value, Origin.UNDECIDED, words))
    value = getattr(declaration.capabilities, capability)
    if not holding and value is not UNDECLARED:
        holding.append((value, Origin.DECLARED, f"declares {capability}={text_of(value)}"))
    return [*holding, *undecided]


def _joined(kind: Kind, said: list[Stated]) -> Stated:
    """Join values; the words are of the one that gives the result, the later on a tie."""

    def both(one: Stated, other: Stated) -> Stated:
        value = kind.join(one[0], other[0])
        if value == other[0]:
            return other
        return one if value == one[0] else (value, other[1], f"{one[2]}; {other[2]}")

    return reduce(both, said)


def _if_required(
    declaration: Declaration, capability: str, required: str, stated: Stated, situation: Situation
) -> Stated:
    """Take the worst value unless what the capability requires is declared too."""
    value, origin, _ = declared(declaration, required, situation)
    if value == CAPABILITIES[required].best:
        return stated
    words = f"declares {capability}={text_of(stated[0])}, but not {required}, which it needs"
    return CAPABILITIES[capability].worst, origin, words


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


def cause_of_rule(
    rule: Rule, capability: str, phase: Phase | None, situation: Situation
) -> Cause | None:
    """Say what a rule forces; while its condition is open, it counts."""
    forced = rule.forces.stated()
    own = situation if phase is None else {**situation, "phase": phase}
    truth = rule.truth(own) if capability in forced else Truth.FALSE
    if truth is Truth.FALSE:
        return None
    known = truth is Truth.TRUE
    return Cause(
        kind=CauseKind.RULE,
        name=rule.name,
        phase=phase,
        value=forced[capability],
        reason=f"{rule.reason} ({'' if known else 'not known yet: '}{rule.given})",
        origin=Origin.FORCED if known else Origin.UNDECIDED,
    )
