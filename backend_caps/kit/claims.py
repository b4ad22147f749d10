"""What became of each claim of a declaration."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from backend_caps.capability.fit import text_of
from backend_caps.capability.kind import Role
from backend_caps.capability.scale import UNDECLARED
from backend_caps.capability.vocabulary import CAPABILITIES
from backend_caps.kit.check import Check
from backend_caps.kit.results import CheckResult, Results, Verdict
from backend_caps.kit.scenarios import Forward, Scenario
from backend_caps.report.check_documents import NOT_ASKED
from backend_caps.report.document import json_of


def _roles(scenario: Scenario) -> frozenset[object]:
    """Say which roles a forward stands for: a draft step of a chain is a decode.

    The target's own is in every run: a check of roles says nothing unless the numbers are right.
    """
    drafts = {Role.DRAFT} if scenario.forward is Forward.DECODE else set()
    return frozenset({Role.TARGET, scenario.forward.role, *drafts})


_SEEN: Mapping[str, Callable[[Scenario], frozenset[object]]] = {
    "dtypes": lambda scenario: frozenset({scenario.dtype}),
    "kv_cache_dtypes": lambda scenario: frozenset({scenario.dtype}),
    "roles": _roles,
    "graph_replay": lambda scenario: frozenset({scenario.forward.batch_kind}),
}
"""What a case has of capabilities that name what they take one by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """A claim, and what became of it."""

    capability: str
    value: JsonValue
    """What is claimed, without conditions."""
    is_conditional: bool
    """Whether conditions claim something else."""
    verdict: Verdict
    checks: Sequence[str]
    """The checks about it that ran cases."""
    reason: str | None
    """Why it was not checked; None where it was."""


def claims_of(results: Results, known: Sequence[Check]) -> Iterator[Claimed]:
    """List what is stated, and what is not and yet counts as the worst, as checks take it.

    Args:
        results: what was found.
        known: all checks, those too that were not asked for.
    """
    declaration = results.subject.declaration
    stated = declaration.capabilities.stated()
    about = {claim for check in known for claim in check.claims}
    conditional = {name for when in declaration.conditions for name in when.capabilities.stated()}
    for name in CAPABILITIES:
        if name in stated or name in conditional or name in about:
            checks = [own for own in results.checks if name in own.check.claims]
            verdict = results.claims.get(name, Verdict.NOT_CHECKED)
            reason = _why_not(checks, is_known=name in about)
            if verdict is Verdict.HELD and (unseen := _unseen(name, stated.get(name), checks)):
                verdict, reason = Verdict.NOT_CHECKED, f"no case has {', '.join(unseen)}"
            yield Claimed(
                capability=name,
                value=json_of(stated.get(name, UNDECLARED)),
                is_conditional=name in conditional,
                verdict=verdict,
                checks=[own.check.code for own in checks if own.cases],
                reason=reason if verdict is Verdict.NOT_CHECKED else None,
            )


def _unseen(capability: str, value: object, checks: Sequence[CheckResult]) -> list[str]:
    """List what a claim names one by one and no case had."""
    if capability not in _SEEN or not isinstance(value, frozenset):
        return []
    cases = [case for own in checks for case in own.cases]
    seen = [_SEEN[capability](case.scenario) for case in cases if case.scenario is not None]
    return sorted(map(text_of, value.difference(*seen)))


def _why_not(checks: Sequence[CheckResult], *, is_known: bool) -> str:
    """Say why a claim was not checked."""
    if checks:
        return "; ".join(dict.fromkeys(own.reason for own in checks))
    return NOT_ASKED if is_known else "no check is about it"
