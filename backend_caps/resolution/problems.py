"""What is wrong with a plan, as data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from backend_caps.capability.backend import Problem
from backend_caps.capability.declaration import Declaration
from backend_caps.capability.fit import CHECKED_AGAINST, text_of, unsupported_reasons
from backend_caps.capability.kind import Role
from backend_caps.capability.provenance import Origin
from backend_caps.capability.scale import UNDECLARED, Undeclared
from backend_caps.capability.sizes import Conflict, Unchecked
from backend_caps.capability.vocabulary import CAPABILITIES
from backend_caps.resolution.contributions import declared
from backend_caps.resolution.errors import RoleError, raise_all
from backend_caps.resolution.plan import Cause, Plan, Resolved, in_order
from backend_caps.resolution.uses import ENGINE_DEFAULT, Use


def check_roles(uses: Iterable[Use]) -> None:
    """Refuse uses in a role that their backend says it does not take.

    Raises:
        RoleError: one for each such slot; several as a group.
    """
    faults = {
        (use.backend, use.slot, use.role): RoleError(
            backend=use.backend,
            role=use.role.value,
            slot=use.slot,
            takes=tuple(sorted(role.value for role in roles)),
        )
        for use in uses
        if (roles := _roles(use)) is not None and use.role not in roles
    }
    raise_all("roles", list(faults.values()))


def _roles(use: Use) -> frozenset[Role] | None:
    roles = UNDECLARED if use.declaration is None else use.declaration.capabilities.roles
    return None if isinstance(roles, Undeclared) else frozenset(roles)


def problems_of(plan: Plan) -> tuple[Problem, ...]:
    """List what is wrong with a plan, each problem once."""
    return in_order({*plan.rules.problems, *_of_uses(plan), *_of_values(plan)})


def _of_uses(plan: Plan) -> Iterator[Problem]:
    yield from _of_engine_default([use for use in plan.uses if use.backend == ENGINE_DEFAULT])
    named = [use for use in plan.uses if use.backend != ENGINE_DEFAULT]
    yield from _of_roles([use for use in named if use.declaration and not use.adds_only])
    for use in named:
        if use.problem is not None:
            yield use.problem
        elif use.declaration is not None and not use.adds_only:
            yield from _of_machine(use, use.declaration, plan)


def _of_engine_default(uses: Sequence[Use]) -> Iterator[Problem]:
    if uses:
        phases = ", ".join(sorted({use.phase.value for use in uses}))
        yield Problem(
            code="engine-default",
            message=f"the backend for {phases} is the engine's own choice ({uses[0].slot}); "
            "nothing is known of it, so it counts as undeclared.",
            remedy="Name it with --attention-backend.",
        )


def _of_roles(uses: Sequence[Use]) -> Iterator[Problem]:
    unsaid = [use for use in uses if use.role is not Role.TARGET and _roles(use) is None]
    for name in sorted({use.backend for use in unsaid}):
        roles = ", ".join(sorted({use.role.value for use in unsaid if use.backend == name}))
        yield Problem(
            code="role-not-declared",
            message=f"backend {name!r} is used as {roles} and declares no roles; "
            "undeclared is target alone.",
            remedy="Ask the backend's author to declare its roles.",
        )


def _of_machine(use: Use, declaration: Declaration, plan: Plan) -> Iterator[Problem]:
    situation = {**plan.flags.situation(plan.facts), "role": use.role, "phase": use.phase}
    effective = {}
    for name in CHECKED_AGAINST:
        value, origin, _ = declared(declaration, name, situation)
        unsaid = origin is Origin.UNDECLARED or isinstance(value, Unchecked)
        effective[name] = UNDECLARED if unsaid else value
    for reason in unsupported_reasons(effective, plan.flags.with_facts(plan.facts)):
        yield Problem(code=reason.code, message=reason.of(use.backend), remedy=reason.remedy)


def _of_values(plan: Plan) -> Iterator[Problem]:
    pages = plan["page_sizes"]
    if isinstance(pages.value, Conflict):
        asked = ", ".join(
            f"{cause.name!r} takes {text_of(cause.value)}" for cause in _restricting(pages)
        )
        yield Problem(
            code="page-size-conflict",
            message=f"no page size serves every backend: {asked}.",
            remedy="Use backends that share a page size.",
        )
    yield from _of_topk(plan)
    if plan.flags.enable_two_batch_overlap and plan["two_batch_overlap"].value is False:
        yield Problem(
            code="two-batch-overlap-unsupported",
            message="--enable-two-batch-overlap is given, and not every backend may run under "
            f"it: {_names(plan['two_batch_overlap'])}.",
            remedy="Leave the flag out, or use other backends.",
        )


def _of_topk(plan: Plan) -> Iterator[Problem]:
    topk, limit = plan.flags.speculative_eagle_topk, plan["max_speculative_topk"]
    if topk is None or plan.flags.speculative_algorithm is None:
        return
    if isinstance(limit.value, int) and topk > limit.value:
        yield Problem(
            code="speculative-topk-unsupported",
            message=f"--speculative-eagle-topk is {topk}, and the backends take at most "
            f"{limit.value}: {_names(limit)}.",
            remedy=f"Set it to {limit.value}, or use other backends.",
        )


def _restricting(resolved: Resolved) -> Iterator[Cause]:
    best = CAPABILITIES[resolved.capability].best
    return (cause for cause in resolved.causes if cause.value != best)


def _names(resolved: Resolved) -> str:
    at_fault = {cause.name for cause in resolved.causes if cause.value == resolved.value}
    return ", ".join(sorted(map(repr, at_fault)))
