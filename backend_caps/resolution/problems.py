"""The problems of a plan, as data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from backend_caps.capability.backend import Problem
from backend_caps.capability.declaration import declared
from backend_caps.capability.facts import (
    CHECKED_AGAINST,
    FEATURES,
    OF_EVERY_SERVER,
    Facts,
    Reason,
    Situation,
    text_of,
    unsupported_reasons,
)
from backend_caps.capability.kind import ANY, UNDECLARED, Role
from backend_caps.capability.provenance import Origin
from backend_caps.capability.sets import Conflict, Unchecked
from backend_caps.capability.vocabulary import CAPABILITIES, NO_LIMIT
from backend_caps.resolution.engine import option_of
from backend_caps.resolution.errors import ResolutionError, plan_problem, raise_all
from backend_caps.resolution.flags import ServerFlags
from backend_caps.resolution.plan import Cause, Plan, Resolved, in_order
from backend_caps.resolution.uses import Use, UseKind

_CUDA = "cuda"
_DETERMINISM: Mapping[str, str] = {
    "deterministic": "gives the same bits each time",
    "batch_invariant": "gives a request the same bits in every batch",
}
"""What deterministic inference requires of each backend."""

_CAPABILITIES: Mapping[str, str] = {
    fact: name for name, fact in reversed([*CHECKED_AGAINST.items()])
}
"""The capability that is checked against each fact; of two, the first."""
_UNSAID = frozenset({Origin.UNDECLARED, Origin.UNVERIFIED})
"""Origins of a worst value for lack of a statement; the backend may do better."""

RoleFault = tuple[str, str, Role]
"""A backend, the slot that it is used in, and the role there."""


def check_roles(uses: Iterable[Use], situation: Situation) -> None:
    """Refuse uses in a role that their backend does not take.

    Raises:
        ResolutionError: one for each such slot; several as a group.
    """
    faults = [
        ResolutionError(
            "role",
            f"backend {backend!r} does not take the role {role.value!r} ({slot}); "
            f"it takes: {takes}. Name another backend for that role.",
        )
        for (backend, slot, role), takes in role_faults(uses, situation).items()
    ]
    raise_all("roles", faults)


def role_faults(uses: Iterable[Use], situation: Situation) -> Mapping[RoleFault, str]:
    """Map each use in a role that its backend does not take to the roles that it takes."""
    return {
        (use.backend, use.slot, use.role): ", ".join(sorted(role.value for role in roles))
        for use in uses
        if (roles := _roles(use, situation)) is not None and use.role not in roles
    }


def _roles(use: Use, situation: Situation) -> frozenset[Role] | None:
    """Return the roles that a backend takes; None where undeclared or undecided."""
    if use.declaration is None:
        return None
    roles, origin, _ = declared(use.declaration, "roles", use.placed(situation))
    is_open = origin in {Origin.UNDECLARED, Origin.UNDECIDED}
    return frozenset(roles) if isinstance(roles, frozenset) and not is_open else None


def problems_of(plan: Plan) -> tuple[Problem, ...]:
    """List the problems of a plan, each once."""
    launch = () if plan.launch is None else tuple(plan.launch.problems())
    if plan.launch is not None and plan.launch.starts is False:
        return launch  # no server, so nothing else of it matters
    of_premises = {*plan.rules.problems, *_of_flags(plan), *launch}
    return in_order({*of_premises, *_of_uses(plan), *problems_of_values(plan)})


def _of_flags(plan: Plan) -> Iterator[Problem]:
    algorithm, known = plan.flags.speculative_algorithm, plan.rules.algorithms
    if algorithm is not None and known and algorithm not in known:
        names, rules = ", ".join(sorted(known)), plan.rules.name
        yield plan_problem("algorithm-not-checked", rules=rules, algorithm=algorithm, known=names)
    for name in plan.flags.contradicted(plan.facts):
        flag, fact = (text_of(getattr(each, name)) for each in (plan.flags, plan.facts))
        values = {"option": option_of(name), "name": name, "flag": flag, "fact": fact}
        yield plan_problem("facts-contradict-flags", **values)


def _of_uses(plan: Plan) -> Iterator[Problem]:
    named = [use for use in plan.uses if use.kind is not UseKind.ENGINE_DEFAULT]
    if by_default := [use for use in plan.uses if use.kind is UseKind.ENGINE_DEFAULT]:
        phases = ", ".join(sorted({use.phase.value for use in by_default}))
        yield plan_problem("engine-default", phases=phases, slot=by_default[0].slot)
    situation = plan.flags.situation(plan.facts)
    stated = [use for use in named if use.declaration and not use.adds_only]
    yield from _of_roles([use for use in stated if use.kind is not UseKind.LAYERS], situation)
    for use in named:
        if use.declaration is None and use.problem is not None:
            yield use.problem
        yield from (problem_of(reason, use) for reason in _reasons(use, plan))


def _of_roles(uses: Sequence[Use], situation: Situation) -> Iterator[Problem]:
    drafting = [use for use in uses if use.role is not Role.TARGET]
    unsaid = [use for use in drafting if _roles(use, situation) is None]
    for name, use in sorted({use.backend: use for use in unsaid}.items()):
        roles = ", ".join(sorted({use.role.value for use in unsaid if use.backend == name}))
        unverified = use.unverified.get("roles")
        says = "declares no roles" if unverified is None else unverified.words
        meant = None if unverified is None else name
        yield plan_problem("role-not-declared", name=name, roles=roles, says=says, meant=meant)


def misfits_of(use: Use, plan: Plan) -> Iterator[Reason]:
    """List the facts that a use's declaration excludes."""
    return (reason for reason in _reasons(use, plan) if reason.needed is not None)


def _reasons(use: Use, plan: Plan) -> Iterator[Reason]:
    """List why a use does not fit machine and model, or was not checked against them."""
    if not use.is_checked:
        return
    taken, facts = _taken(use, plan.flags.situation(plan.facts)), plan.flags.with_facts(plan.facts)
    if use.facts is not None:
        facts = facts.model_copy(update=use.facts.known())
    for reason in unsupported_reasons(taken, facts):
        if reason.needed is not None or not use.readings:  # an engine's class has no such fields
            yield reason


def _taken(use: Use, situation: Situation) -> Mapping[str, object]:
    """Map each checked capability to what a use takes; unread: anything."""
    if use.declaration is None:
        return dict.fromkeys(CHECKED_AGAINST, ANY)
    own = use.placed(situation)
    unsaid = ANY if use.adds_only else UNDECLARED  # its parts are checked by themselves
    taken: dict[str, object] = {}
    for name in CHECKED_AGAINST:
        value, origin, _ = declared(use.declaration, name, own)
        is_unsaid = origin is Origin.UNDECLARED or isinstance(value, Unchecked)
        taken[name] = unsaid if is_unsaid else value
    return taken


def unknown_facts(flags: ServerFlags, facts: Facts) -> tuple[str, ...]:
    """List the facts of every server that backends are checked against and that are not known."""
    known = flags.with_facts(facts).known()
    is_cuda = known.get("device", _CUDA) == _CUDA
    return tuple(
        fact
        for fact in CHECKED_AGAINST.values()
        if fact in OF_EVERY_SERVER - known.keys()
        if fact != "compute_capability" or is_cuda  # other devices have none
    )


def not_known(uses: Iterable[Use], flags: ServerFlags, facts: Facts) -> Iterator[Problem]:
    """Yield a problem for each restriction of a use on an unknown fact."""
    unknown, situation = unknown_facts(flags, facts), flags.situation(facts)
    for use in (each for each in uses if each.is_checked):
        asked = () if use.facts is None else use.facts.known()
        for name, value in _taken(use, situation).items():
            fact, needed = CHECKED_AGAINST[name], text_of(value)
            if fact in unknown and fact not in asked and value not in (ANY, UNDECLARED):
                yield Problem(
                    code=f"{fact.replace('_', '-')}-not-checked",
                    message=f"backend {use.backend!r} takes {fact} {needed}; here it is not known.",
                    remedy=f"Say what it is, such as by --fact {fact}=VALUE.",
                    actual="not known",
                    needed=needed,
                )


def problem_of(reason: Reason, use: Use) -> Problem:
    """Write the problem of a use that does not fit, or was not checked."""
    message, remedy = reason.of(use.backend), reason.remedy
    capability = _CAPABILITIES[reason.fact]
    unverified = use.unverified.get(capability) if reason.needed is None else None
    if unverified is not None:
        here = f"here {reason.fact} is {reason.actual}"
        message = f"backend {use.backend!r} {unverified.words}; {here}."
        remedy = f"Verify it: backend-caps check {use.backend} --write-evidence."
    if use.facts is not None and reason.fact in use.facts.known():
        asked = reason.fact if reason.fact in FEATURES else f"{reason.fact} {reason.actual}"
        says = f"declares {capability}={reason.needed}"
        if reason.needed is None:
            says = f"does not declare {capability}" if unverified is None else unverified.words
        message = f"{use.slot} ask {asked}; backend {use.backend!r} {says} ({use.source})."
    return Problem(
        code=reason.code, message=message, remedy=remedy, actual=reason.actual, needed=reason.needed
    )


def problems_of_values(plan: Plan) -> Iterator[Problem]:
    """List the problems of a plan's values, also of overrides and joins."""
    pages = plan["page_sizes"]
    if isinstance(pages.value, Conflict):
        takes = [f"{cause.name!r} takes {text_of(cause.value)}" for cause in _restricting(pages)]
        actual, needed = ", ".join(dict.fromkeys(takes)), "a page size that all take"
        yield plan_problem("page-size-conflict", actual=actual, needed=needed)
    yield from _of_topk(plan)
    if plan.flags.enable_two_batch_overlap and plan["two_batch_overlap"].known_value is False:
        actual, needed = "two-batch overlap on", "two-batch overlap off"
        names = _names(plan["two_batch_overlap"])
        code = "two-batch-overlap-unsupported"
        yield plan_problem(code, actual=actual, needed=needed, names=names)
    for name, what in _DETERMINISM.items() if plan.flags.enable_deterministic_inference else ():
        if plan[name].known_value is False:
            code, names = "deterministic-inference-unsupported", _names(plan[name])
            needed = f"{name} yes"
            yield plan_problem(code, actual=f"{name} no", needed=needed, what=what, names=names)


def _of_topk(plan: Plan) -> Iterator[Problem]:
    topk, limit = plan.flags.speculative_eagle_topk, plan["max_speculative_topk"]
    if not limit.effect.active or limit.value == NO_LIMIT or not limit.is_known:
        return
    needed, names = f"at most {text_of(limit.value)}", _names(limit)
    who_take = f"{names} {'takes' if len(_deciding(limit)) == 1 else 'take'}"
    own = {"limit": text_of(limit.value), "names": names, "who_take": who_take}
    if topk is None:
        yield plan_problem("speculative-topk-not-checked", needed=needed, **own)
    elif isinstance(limit.value, int) and topk > limit.value:
        if all(cause.origin in _UNSAID for cause in _restricting(limit)):
            yield plan_problem("speculative-topk-not-declared", actual=str(topk), **own)
        else:
            code = "speculative-topk-unsupported"
            yield plan_problem(code, actual=str(topk), needed=needed, **own)


def _restricting(resolved: Resolved) -> Iterator[Cause]:
    best = CAPABILITIES[resolved.capability].best
    return (cause for cause in resolved.causes if cause.value != best)


def _names(resolved: Resolved) -> str:
    return ", ".join(sorted(map(repr, _deciding(resolved))))


def _deciding(resolved: Resolved) -> set[str]:
    """Return the names of the causes that give a value."""
    return {cause.name for cause in resolved.causes if cause.value == resolved.value}
