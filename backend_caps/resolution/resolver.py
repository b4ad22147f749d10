"""From uses, flags and rules to a plan. Pure: no clock, environment, torch or logging.

Only without rules is the environment read, for the version of the installed engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import reduce

from backend_caps.capability.backend import Problem
from backend_caps.capability.declaration import Stated, added, declared
from backend_caps.capability.facts import Facts, Situation, Truth, text_of
from backend_caps.capability.kind import EVERY_USE, RELAY_LOOP, Phase, Role, Scope
from backend_caps.capability.provenance import Origin
from backend_caps.capability.vocabulary import CAPABILITIES, IN_PLANS, Capabilities
from backend_caps.resolution.errors import (
    FlagsError,
    PlanRefusedError,
    ResolutionError,
    nearest,
    raise_all,
)
from backend_caps.resolution.flags import ServerFlags
from backend_caps.resolution.launch import Launch
from backend_caps.resolution.plan import Cause, CauseKind, Choice, Plan, Policy, Resolved, in_order
from backend_caps.resolution.problems import check_roles, not_known, problems_of
from backend_caps.resolution.rules import Rule, RuleSet
from backend_caps.resolution.uses import Use, UseKind, made_of

_FROM_ABOVE = frozenset({Origin.INHERITED, Origin.UNDECLARED})
"""What a wrapper has of its base class, whatever its parts say."""
_PREFILLS = {"prefill": (Role.TARGET, Phase.PREFILL), "draft_prefill": (Role.DRAFT, Phase.PREFILL)}
"""The uses that a pair in a launch's slot may join."""


def resolve(
    uses: Iterable[Use],
    flags: ServerFlags,
    *,
    rules: RuleSet | None = None,
    facts: Facts | None = None,
    policy: Policy | str = Policy.WARN,
    unsafe_override: Capabilities | None = None,
    choices: tuple[Choice, ...] = (),
    launch: Launch | None = None,
) -> Plan:
    """Join what every use needs with what the flags force, keeping every cause.

    Args:
        uses: each backend's roles and phases, from `registry.uses(flags)` or by hand.
        flags: the server's.
        rules: the engine version's; unless given, those of the installed engine, else the newest
            built-in ones. `plan.rules.name` says which.
        facts: what is known of machine and model; conditions on unknown facts stay open.
        policy: the handling of problems; `strict` raises them, also for facts that a backend
            restricts and that are not known.
        unsafe_override: values that replace the joined ones, even by better ones. Each is
            recorded as a cause.
        choices: the choices of `select` for these flags, kept in the plan.
        launch: what the engine makes of the command line; `flags` and `facts` are with its values.

    Raises:
        ResolutionError: `uses` is empty, a backend is used in a role that it does not take, or
            a use is a composite whose parts are not in `uses`.
        FlagsError: the override names a capability that a plan does not hold, or the speculative
            algorithm is nearly one of the engine's.
        PlanRefusedError: the policy is strict and there is a problem. Several faults come
            as one group.
    """
    if isinstance(uses, ServerFlags):
        raise ResolutionError(
            "arguments-swapped",
            "resolve() is given ServerFlags as its uses; expected the uses first and the flags "
            "second. Write resolve(uses, flags).",
        )
    rules = rules or RuleSet.installed()
    facts = facts or Facts()
    situation = flags.situation(facts)
    uses = tuple(sorted(made_of(uses, situation), key=lambda use: use.sort_key))
    _check_algorithm(flags, rules)
    _check(uses, situation)
    plan = Plan(
        by_phase={},
        uses=uses,
        flags=flags,
        facts=facts,
        rules=rules,
        policy=Policy(policy),
        overrides=tuple(_overrides(unsafe_override).items()),
        choices=choices,
        launch=launch,
    )
    by_phase = {
        phase: {
            name: _resolved(plan, situation, name, phase)
            for name, kind in CAPABILITIES.items()
            if kind.scope is (Scope.SERVER if phase is None else Scope.PHASE)
        }
        for phase in (None, *Phase)
    }
    plan = replace(plan, by_phase=by_phase)
    return under_policy(plan, problems_of(plan))


def _check_algorithm(flags: ServerFlags, rules: RuleSet) -> None:
    """Refuse an algorithm that is a misspelt one; a plugin may add others."""
    algorithm = flags.speculative_algorithm
    if algorithm is None or algorithm in rules.algorithms:
        return
    meant = nearest(algorithm, [*rules.algorithms])
    if meant is not None:
        raise FlagsError(
            "unknown-algorithm",
            f"--speculative-algorithm is {algorithm!r}, which {rules.name} does not have; it has: "
            f"{', '.join(sorted(rules.algorithms))}. Did you mean {meant!r}?",
        )


def _check(uses: tuple[Use, ...], situation: Situation) -> None:
    if not uses:
        raise ResolutionError(
            "no-use",
            "no use of a backend was given; a server runs at least one. Take uses from "
            "registry.uses(flags), or write Use(backend=..., role=..., phase=...).",
        )
    check_roles(uses, situation)
    for use in uses:
        if use.declaration is not None and use.declaration.parts and not use.adds_only:
            parts = ", ".join(part.backend for part in use.declaration.parts)
            raise ResolutionError(
                "unexpanded-composite",
                f"backend {use.backend!r} is a composite of {parts} and stands in a use "
                "unexpanded. Take uses from registry.uses(flags), or write one for each part.",
            )


def _overrides(unsafe_override: Capabilities | None) -> Mapping[str, object]:
    stated = {} if unsafe_override is None else unsafe_override.stated()
    for name, value in stated.items():
        if name not in IN_PLANS:
            raise FlagsError(
                "override",
                f"unsafe_override {name}={text_of(value)} cannot be applied; expected a capability "
                f"that a plan holds: {', '.join(IN_PLANS)}. Correct its name or value.",
            )
    return stated


def _resolved(plan: Plan, situation: Situation, capability: str, phase: Phase | None) -> Resolved:
    """Fold a plan's uses, rules and overrides to one value."""
    kind, overrides = CAPABILITIES[capability], dict(plan.overrides)
    counted = kind.counted
    # At prefill the scheduler knows the lengths, except those of decode rows that are mixed in.
    if counted is RELAY_LOOP and plan.rules.relays_prompts(situation):
        counted = EVERY_USE
    elif counted is RELAY_LOOP and plan.launch is not None:
        counted |= {use for slot, use in _PREFILLS.items() if slot in plan.launch.joined}
    uses = [u for u in plan.uses if (u.role, u.phase) in counted and phase in (None, u.phase)]
    of_uses = (cause_of_use(use, capability, situation) for use in uses)
    of_rules = (cause_of_rule(rule, capability, phase, situation) for rule in plan.rules.rules)
    causes = [cause for cause in (*of_uses, *of_rules) if cause is not None]
    value = reduce(kind.join, (cause.value for cause in causes), kind.best)
    if capability in overrides:
        value = overrides[capability]
        override = Cause(
            kind=CauseKind.OVERRIDE,
            name=capability,
            phase=phase,
            value=value,
            reason="unsafe_override: the operator put it in place of the joined value",
            origin=Origin.OVERRIDDEN,
        )
        causes.append(override)
    return plan.resolved(situation, capability, value, causes)


def cause_of_use(use: Use, capability: str, situation: Situation) -> Cause | None:
    """Return a use's cause; None where a composite leaves the value to its parts."""
    kind = CAPABILITIES[capability]
    own = use.placed(situation)
    if use.declaration is None:
        assert use.problem is not None, f"use of {use.backend} has neither declaration nor problem"
        return _cause(use, (kind.worst, Origin.MISSING, use.problem.message), own)
    if use.adds_only:
        adds = added(use.declaration, capability, own)
        reading = use.readings.get(capability)
        if adds is None and reading is not None and reading.origin in _FROM_ABOVE:
            adds = _explained(use, capability, (kind.worst, Origin.UNDECLARED, ""))
        return None if adds is None else _cause(use, adds, own)
    stated = declared(use.declaration, capability, own)
    if kind.requires is not None and stated[0] != kind.worst:
        value, origin, _ = declared(use.declaration, kind.requires, own)
        if value != CAPABILITIES[kind.requires].best:
            says = f"declares {capability}={text_of(stated[0])}"
            words = f"{says}, but not {kind.requires}, which it needs"
            stated = kind.worst, origin, words
    return _cause(use, _explained(use, capability, stated), own)


def _explained(use: Use, capability: str, stated: Stated) -> Stated:
    """Replace the reason of an undeclared value that is inherited, unverified or not known."""
    value, origin, _ = stated
    reading = use.found.get(capability, use.readings.get(capability))
    if origin is Origin.DECLARED and reading is not None and use.kind is UseKind.LAYERS:
        # Its author declares nothing: the engine's code says it.
        place = "" if reading.declared_at is None else f" ({reading.declared_at})"
        return value, origin, f"{reading.words}{place}"
    if origin is not Origin.UNDECLARED:
        return stated
    if reading is not None and reading.origin is Origin.INHERITED:
        base = f" of {reading.inherited_from}" if reading.inherited_from else ""
        words = f"inherits {reading.words}{base}, and does not state it again: counts as undeclared"
        return value, Origin.INHERITED, words
    if reading is not None and reading.origin is Origin.NOT_KNOWN:
        return value, Origin.NOT_KNOWN, reading.words
    if capability in use.unverified:
        return value, Origin.UNVERIFIED, use.unverified[capability].words
    # A class without host lengths is known: SGLang's decision takes a missing flag for True.
    if reading is None and use.readings and capability != "host_seq_lens":
        return value, Origin.NOT_KNOWN, f"the engine's source does not state {capability}"
    return stated


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
    """Return a rule's cause; an open condition counts as met."""
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


def under_policy(plan: Plan, problems: tuple[Problem, ...]) -> Plan:
    """Return a plan with its problems.

    Raises:
        PlanRefusedError: its policy is strict, and it has problems or unknown facts.
    """
    if plan.policy is Policy.STRICT:
        unknown = not_known(plan.uses, plan.flags, plan.facts)
        refused = [
            PlanRefusedError(code=found.code, problem=found.message, remedy=found.remedy)
            for found in in_order({*problems, *unknown})
        ]
        raise_all("plan refused (strict)", refused)
    return replace(plan, problems=problems)
