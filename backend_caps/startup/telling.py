"""A server's decision in its log: one line, and the whole plan for debugging."""

from __future__ import annotations

import logging

from backend_caps.capability.fit import text_of
from backend_caps.capability.kind import Phase
from backend_caps.report.document import json_text
from backend_caps.report.plans import plan_document
from backend_caps.resolution.plan import Cause, Plan, Policy, Resolved

_log = logging.getLogger("backend_caps")


def tell(plan: Plan) -> None:
    """Log what was chosen, the decision in one line, and what is wrong with it.

    The line's record carries the same as the fields `plan_fingerprint`, `plan_rules` and
    `plan_values`. The whole plan, with every cause, is logged as JSON for debugging.
    """
    values = {_name(phase, own): _value(own) for phase, own in plan.values()}
    for choice in plan.choices:
        _log.info("%s", choice)
    fields = {"plan_fingerprint": plan.fingerprint, "plan_rules": plan.rules.name}
    _log.info(
        "plan %s under %s: %s",
        *fields.values(),
        "; ".join(f"{name}={value}" for name, value in values.items()),
        extra={**fields, "plan_values": values},
    )
    if _log.isEnabledFor(logging.DEBUG):
        _log.debug("%s", json_text(plan_document(plan, ())))
    if plan.policy is not Policy.QUIET:
        for problem in plan.problems:
            _log.warning("%s: %s %s", problem.code, problem.message, problem.remedy)


def _name(phase: Phase | None, own: Resolved) -> str:
    return own.capability if phase is None else f"{phase.value}.{own.capability}"


def _value(own: Resolved) -> str:
    return f"{text_of(own.value)} ({_who(own.causes[0]) if own.causes else 'no use'})"


def _who(cause: Cause) -> str:
    """Name a cause, and the rank that it comes from where not all have it."""
    name = " of ".join([f"{cause.kind.value} {cause.name}", *reversed(cause.via)])
    return name if cause.rank is None else f"{name} on rank {cause.rank}, {cause.host}"
