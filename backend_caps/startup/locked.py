"""A server that starts only as a lock file says."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from backend_caps.discovery.registry import Registry
from backend_caps.errors import BackendCapsError
from backend_caps.report.diff import differences
from backend_caps.report.difference import DifferenceDocument
from backend_caps.report.lock import lock_document, read_lock
from backend_caps.report.plans import plan_document
from backend_caps.report.snapshot import Snapshot
from backend_caps.resolution.plan import Plan

_SHOWN = 5
"""Differences that are told; `backend-caps verify` has all."""


@dataclass(eq=False, kw_only=True)
class LockDiffersError(BackendCapsError):
    """What is installed, or the plan, is not what a lock file says."""

    path: str
    differences: tuple[DifferenceDocument, ...]
    """The most important first."""

    @property
    def message(self) -> str:
        """The file, and what differs."""
        told = "; ".join(map(_told, self.differences[:_SHOWN]))
        more = len(self.differences) - _SHOWN
        rest = f"; and {more} more" if more > 0 else ""
        return (
            f"the server would not start as {self.path!r} says: {told}{rest}. Expected what was "
            f"locked. Install it, or look at `backend-caps verify {self.path}` and lock anew."
        )


def check_locked(path: Path, plan: Plan, registry: Registry) -> None:
    """Refuse a plan that a lock file does not have.

    What was asked when it was written is not compared: this is the plan that counts.

    Raises:
        LockError: the file is not there, cannot be read, or is another document.
        LockDiffersError: something is not as it says.
    """
    locked = read_lock(path)
    now = lock_document(
        locked.request,
        backends=registry.entries,
        problems=registry.problems,
        rules=plan.rules,
        plan=None if locked.plan is None else plan_document(plan, ()),
    ).model_copy(update={"engine": locked.engine})
    found = differences(Snapshot.of_lock(locked), Snapshot.of_lock(now))
    if found:
        raise LockDiffersError(path=str(path), differences=found)


def _told(difference: DifferenceDocument) -> str:
    what = " ".join(part for part in (difference.subject, difference.field) if part)
    return f"{what} is {difference.after or 'not there'} and was {difference.before or 'not there'}"
