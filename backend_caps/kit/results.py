"""What checks found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from backend_caps.kit.check import Case, Check, Fault, Hint
from backend_caps.kit.subject import Subject


class Verdict(Enum):
    """What became of a check, or of a claim."""

    HELD = "held"
    """Nothing was found against it, in any case."""
    FAILED = "failed"
    """A case found a fault."""
    NOT_CHECKED = "not checked"
    """No case looked at it; the reason says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A fault, with all that is needed to see it again."""

    subject: str
    """The backend's name."""
    claims: tuple[str, ...]
    """What it claims that does not hold."""
    case: Case
    """What found it."""
    fault: Fault
    """What was wrong."""
    words: tuple[str, ...] = ()
    """What `backend-caps check` is told beside the name."""

    @property
    def replay(self) -> str:
        """The command that runs this case again, alone."""
        words = "".join(f"{word} " for word in self.words)
        return f"backend-caps check {words}{self.subject} --case '{self.case.name}'"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """What became of a check."""

    check: Check
    status: Verdict
    reason: str = ""
    """Why it was not checked."""
    cases: Sequence[Case] = ()
    """Those that ran to an answer."""
    num_blocked: int = 0
    """Cases without one: the run to compare with failed."""
    findings: Sequence[Finding] = ()
    hints: Sequence[Hint] = ()
    seconds: float = 0.0
    """How long it took."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """What became of a backend."""

    subject: Subject
    device: str
    checks: Sequence[CheckResult]
    exercised: frozenset[str]
    """`role/phase` of each forward that ran."""

    @property
    def findings(self) -> Sequence[Finding]:
        """All that was found."""
        return [finding for own in self.checks for finding in own.findings]

    @property
    def claims(self) -> Mapping[str, Verdict]:
        """Say of each capability that a check is about what became of it: the worst counts."""
        found: dict[str, Verdict] = {}
        for own in self.checks:
            for claim in own.check.claims:
                found[claim] = _worse(found.get(claim), own.status)
        return found


def _worse(one: Verdict | None, other: Verdict) -> Verdict:
    """One fault fails a claim; what one check looked at is checked."""
    if one is None or one is Verdict.NOT_CHECKED:
        return other
    return one if other is not Verdict.FAILED else other
