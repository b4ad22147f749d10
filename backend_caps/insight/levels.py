"""Run a plan at several levels of `host_seq_lens`, where its backends can do with them.

What a rule forces is no backend's need: a run below that level shows what the rule costs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TypeVar

from backend_caps.capability.vocabulary import HostSeqLens
from backend_caps.errors import BackendCapsError
from backend_caps.insight.errors import InsightError, faults_in
from backend_caps.report.step_costs import DraftsDocument, LeftOutDocument
from backend_caps.resolution.plan import CauseKind, Plan, Resolved
from backend_caps.runtime.speculative.settings import SpecSettings

_Run = TypeVar("_Run")


def at_levels(
    plan: Plan, levels: Iterable[HostSeqLens], run: Callable[[HostSeqLens], _Run]
) -> tuple[dict[HostSeqLens, _Run], list[LeftOutDocument]]:
    """Call `run` at each level; list the levels where it cannot run, each with its reason.

    Args:
        plan: its backends say which levels they can run with.
        levels: tried in this order.
        run: called once a level.

    Raises:
        BackendCapsError: the plan's own level cannot run.
    """
    ran, left_out = dict[HostSeqLens, _Run](), list[LeftOutDocument]()
    for level in levels:
        is_own = level is plan.host_seq_lens
        reason = None if is_own else _reason_against(plan, level)
        if reason is None:
            try:
                ran[level] = run(level)
                continue
            except Exception as error:  # a plugin raises what it likes
                fault = _fault_of(error)
                if is_own:
                    raise fault from error
                reason = str(fault)
        left_out.append(LeftOutDocument(level=level.value, reason=reason))
    return ran, left_out


def _fault_of(error: Exception) -> BackendCapsError:
    """Return the only fault of a group; put several, or what a plugin raised, into one."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    if isinstance(error, BackendCapsError):
        return error
    return InsightError(
        "step-failed",
        f"a step raised {'; '.join(faults_in(error))}. Expected backends that run on this device. "
        "Correct the backend, or name another.",
    )


def at_level(plan: Plan, level: HostSeqLens) -> Plan:
    """Put a level in the place of the plan's own; all else stays as it was decided."""

    def put(_: object, own: Resolved) -> Resolved:
        return replace(own, value=level) if own.capability == "host_seq_lens" else own

    return plan.with_values(put)


def _reason_against(plan: Plan, level: HostSeqLens) -> str | None:
    """Name the backends that need more than a level; None where none does."""
    needing: dict[str, None] = {}
    for cause in plan["host_seq_lens"].causes:
        if cause.kind is CauseKind.BACKEND:
            assert isinstance(cause.value, HostSeqLens), "a cause has a level of the scale"
            if level < cause.value:
                needing[f"backend {cause.name!r} {cause.reason}"] = None
    return "; ".join(needing) or None


def drafts_document(plan: Plan) -> DraftsDocument | None:
    """Write down how a plan's steps speculate; None where they do not."""
    settings = SpecSettings.from_flags(plan.flags)
    if settings is None:
        return None
    return DraftsDocument(
        algorithm=settings.algorithm.value,
        topk=settings.topk,
        num_steps=settings.num_steps,
        num_draft_tokens=settings.num_draft_tokens,
    )
