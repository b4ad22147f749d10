"""From what checks found to the document of it. Loads torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from shlex import quote

from backend_caps.kit import (
    Check,
    CheckResult,
    Claimed,
    Effort,
    FileLines,
    Finding,
    Forward,
    Results,
    Verdict,
    claims_of,
)
from backend_caps.report.check_documents import (
    CHECK_SCHEMA,
    CheckDocument,
    CheckedDocument,
    CheckListDocument,
    CheckListedDocument,
    ClaimDocument,
    EffortDocument,
    ExercisedDocument,
    FileLinesDocument,
    FindingDocument,
    HintDocument,
    LinesDocument,
    SaidDocument,
)
from backend_caps.simulator import DEVICE_NAME


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What a run of checks left."""

    results: Results
    effort: Effort
    lines: Sequence[FileLines] | None = None
    """None where they were not counted."""
    said: Mapping[str, int] = field(default_factory=dict)
    path: tuple[Path, ...] = ()
    """The folders that plugins were looked for in; none is the environment."""


def check_document(ran: Ran, known: Sequence[Check]) -> CheckDocument:
    """Write down what became of a backend; `known` are all checks, asked for or not."""
    results, source = ran.results, ran.results.subject.source
    return CheckDocument(
        schema_=CHECK_SCHEMA,
        backend=results.subject.name,
        distribution=source.distribution,
        version=source.version,
        declared_at=None if source.declared_at is None else _nearby(source.declared_at),
        kit_version=version("backend-caps"),
        device=results.device,
        effort=EffortDocument(seeds=[*ran.effort.seeds], num_steps=ran.effort.num_steps),
        status=_whole(results).value,
        claims=[_claim(each) for each in claims_of(results, known)],
        checks=[_checked(own, ran) for own in results.checks],
        exercised=_exercised(results),
        lines=None if ran.lines is None else _lines(ran.lines),
        said=[SaidDocument(text=text, count=count) for text, count in ran.said.items()],
    )


def check_list_document(checks: Sequence[Check]) -> CheckListDocument:
    """Write down which checks there are."""
    return CheckListDocument(
        schema_="backend-caps/check-list@1",
        checks=[
            CheckListedDocument(
                code=check.code,
                title=check.title,
                claims=[*check.claims],
                proves=check.proves,
                cannot=check.cannot,
                after=[*check.after],
            )
            for check in checks
        ],
    )


def _whole(results: Results) -> Verdict:
    """One fault fails the whole; without a case nothing is known."""
    found = {own.status for own in results.checks}
    for status in (Verdict.FAILED, Verdict.HELD):
        if status in found:
            return status
    return Verdict.NOT_CHECKED


def _claim(claimed: Claimed) -> ClaimDocument:
    return ClaimDocument(
        capability=claimed.capability,
        value=claimed.value,
        conditional=claimed.is_conditional or None,
        status=claimed.verdict.value,
        checks=[*claimed.checks],
        reason=claimed.reason,
    )


def _checked(own: CheckResult, ran: Ran) -> CheckedDocument:
    check = own.check
    return CheckedDocument(
        code=check.code,
        title=check.title,
        claims=[*check.claims],
        proves=check.proves,
        cannot=check.cannot,
        applies=check.excuse(ran.results.subject) is None,
        status=own.status.value,
        reason=own.reason or None,
        cases=[case.name for case in own.cases],
        num_blocked=own.num_blocked,
        findings=[_finding(each, ran) for each in own.findings],
        hints=[
            HintDocument(check=check.code, claim=hint.claim, what=hint.what) for hint in own.hints
        ],
        seconds=round(own.seconds, 3),
    )


def _finding(finding: Finding, ran: Ran) -> FindingDocument:
    case, site = finding.case, finding.fault.site
    return FindingDocument(
        check=case.check,
        claims=[*finding.claims],
        what=finding.fault.what,
        case=case.name,
        scenario=None if case.scenario is None else case.scenario.name,
        schedule=str(case.schedule),
        seed=case.seed,
        file=None if site is None else _nearby(site.file),
        line=None if site is None else site.line,
        replay=finding.replay + _beside(ran),
    )


def _beside(ran: Ran) -> str:
    """Write the options that a run had which a case does not name."""
    device = ran.results.device
    options = [] if device == DEVICE_NAME else [f"--device {device}"]
    options += [f"--path {quote(str(folder))}" for folder in ran.path]
    return "".join(f" {option}" for option in options)


def _exercised(results: Results) -> list[ExercisedDocument]:
    cases = [case for own in results.checks for case in own.cases]
    counts = Counter(case.scenario.forward for case in cases if case.scenario is not None)
    return [
        ExercisedDocument(
            forward=forward.value,
            role=forward.role.value,
            phase=forward.phase.value,
            batch_kind=forward.batch_kind.value,
            num_cases=counts[forward],
        )
        for forward in Forward
    ]


def _lines(files: Sequence[FileLines]) -> LinesDocument:
    found = [
        FileLinesDocument(
            file=_nearby(str(own.file)),
            num_lines=len(own.lines),
            num_run=len(own.lines) - len(own.missed),
            missing=[*own.missing],
        )
        for own in files
    ]
    return LinesDocument(
        num_lines=sum(own.num_lines for own in found),
        num_run=sum(own.num_run for own in found),
        files=found,
    )


def _nearby(file: str) -> str:
    """Name a file as it is seen from the working directory, where it lies below that."""
    path, here = Path(file), Path.cwd()
    return path.relative_to(here).as_posix() if path.is_relative_to(here) else file
