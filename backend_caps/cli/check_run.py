"""What `backend-caps check` runs, and the document of what was found. Loads torch."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from shlex import quote
from typing import Self

import click
from rich.console import Console

from backend_caps.cli.options import importable
from backend_caps.discovery.registry import Registry
from backend_caps.kit import (
    Check,
    CheckObservers,
    CheckProgress,
    CheckResult,
    Effort,
    FileLines,
    Finding,
    Forward,
    Journal,
    LineCounter,
    Results,
    Subject,
    Verdict,
    checks_named,
    claims_of,
    evidence_file,
    evidence_of,
    find_case,
    muffled,
    require_device,
    run_case,
    run_checks,
    single_threaded,
    subject_named,
    write_evidence,
)
from backend_caps.kit.adapters import engine_adapter
from backend_caps.kit.checks import CHECKS
from backend_caps.report.check_documents import (
    CHECK_SCHEMA,
    CheckDocument,
    CheckedDocument,
    CheckListDocument,
    ClaimDocument,
    EffortDocument,
    ExercisedDocument,
    FileLinesDocument,
    FindingDocument,
    HintDocument,
    LinesDocument,
    SaidDocument,
)
from backend_caps.report.progress import terminal_of
from backend_caps.simulator import DEVICE_NAME
from backend_caps.supervisor import Log


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckOptions:
    """What to check, and how much of it."""

    device: str
    only: tuple[str, ...]
    """Codes of checks; none is all."""
    case: str | None
    """One case to run alone."""
    effort: Effort
    counts_lines: bool
    evidence: str | None
    """The file to keep evidence in; empty: beside the implementation; None: nowhere."""
    path: tuple[Path, ...]
    """Folders to look for plugins in, instead of the environment."""
    engine: str | None
    """The engine whose own backend is checked; None: a plugin's."""
    without: frozenset[str]
    """Forwards that are left out."""
    deadline_s: float
    """How long each case may take."""

    @property
    def known(self) -> Sequence[Check]:
        """List all checks for a plugin's backend, or for the engine's own."""
        return CHECKS if self.engine is None else engine_adapter(self.engine).checks

    @property
    def chosen(self) -> Sequence[Check]:
        """List the checks to run.

        Raises:
            UnknownCheckError: there is no check of a name in `only`.
        """
        return checks_named(self.known, self.only)

    @classmethod
    def from_context(cls, ctx: click.Context) -> Self:
        """Read the command line."""
        options = ctx.params
        is_quick, lines = options["quick"], options["lines"]
        effort = Effort.quick() if is_quick else Effort()
        if options["seeds"] is not None:
            effort = replace(effort, seeds=range(options["seeds"]))
        return cls(
            device=options["device"],
            only=options["only"],
            case=options["case"],
            effort=effort,
            counts_lines=(not is_quick if lines is None else lines) and options["engine"] is None,
            evidence=options["evidence"],
            path=options["path"],
            engine=options["engine"],
            without=frozenset(options["without"]),
            deadline_s=options["case_deadline"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRun:
    """What a run of checks left."""

    results: Results
    effort: Effort
    lines: Sequence[FileLines] | None = None
    """None where they were not counted."""
    said: Mapping[str, int] = field(default_factory=dict)
    path: tuple[Path, ...] = ()
    """The folders that plugins were looked for in; none is the environment."""


def run_check(
    name: str, options: CheckOptions, registry: Registry, log: Log | None = None
) -> CheckDocument:
    """Check a backend, and write down what became of its claims.

    Args:
        name: as flags name it.
        options: what to check.
        registry: where it is declared.
        log: what an earlier process left that native code ended; this one writes the same.

    Raises:
        BackendCapsError: there is no such backend, check, case or device, it cannot be built, or
            its evidence cannot be written.
    """
    chosen = options.chosen
    require_device(options.device)
    terminal = terminal_of(sys.stderr)  # before what backends print there is kept
    with importable(options.path), single_threaded(), muffled() as said:
        subject = _subject(name, options, registry)
        run = _run(subject, chosen, options, log, terminal)
    run = replace(run, said=said.lines, path=options.path)
    document = check_document(run, options.known)
    if options.evidence is not None and not document.is_stopped:
        evidence = evidence_of(run.results, run.effort, CHECKS, path=options.path)
        file = (
            Path(options.evidence)
            if options.evidence
            else evidence_file(run.results.subject, path=options.path)
        )
        is_new = write_evidence(evidence, file)
        click.echo(f"evidence {'written to' if is_new else 'is as it was in'} {file}", err=True)
    return document


def _subject(name: str, options: CheckOptions, registry: Registry) -> Subject:
    find = subject_named if options.engine is None else engine_adapter(options.engine).subject
    subject, left_out = find(registry, name), sorted(options.without)
    words = tuple(word for forward in left_out for word in ("--without", forward))
    return replace(subject, without=options.without, words=(*subject.words, *words))


def _run(
    subject: Subject,
    chosen: Sequence[Check],
    options: CheckOptions,
    log: Log | None,
    terminal: Console,
) -> CheckRun:
    implementation = subject.declaration.implementation
    assert implementation is not None, "it was imported by this name"
    journal = None
    if log is not None:
        journal = Journal(log, subject, chosen, deadline_s=options.deadline_s)
    with ExitStack() as stack:
        lines = stack.enter_context(LineCounter(implementation)) if options.counts_lines else None
        if options.case is not None:
            run = _run_one(subject, chosen, options.case, options, journal)
        else:
            progress = stack.enter_context(CheckProgress(len(chosen), terminal))
            results = run_checks(
                subject,
                chosen,
                device=options.device,
                effort=options.effort,
                observer=progress if journal is None else CheckObservers(progress, journal),
                known={} if journal is None else journal.known,
                deadline_s=options.deadline_s,
            )
            run = CheckRun(results=results, effort=options.effort)
    if lines is None or (journal is not None and journal.has_crashed):
        return run  # what another process counted is gone with it
    return replace(run, lines=lines.files)


def _run_one(
    subject: Subject,
    chosen: Sequence[Check],
    name: str,
    options: CheckOptions,
    journal: Journal | None,
) -> CheckRun:
    check, case = find_case(subject, chosen, name)
    result = None if journal is None else journal.known.get(check.code)
    if result is None:
        result = run_case(
            subject,
            check,
            case,
            device=options.device,
            observer=journal,
            deadline_s=options.deadline_s,
        )
    results = Results(
        subject=subject, device=options.device, checks=[result], exercised=frozenset()
    )
    return CheckRun(results=results, effort=replace(options.effort, seeds=(case.seed,)))


def check_list_document(checks: Sequence[Check]) -> CheckListDocument:
    """Write down which checks there are."""
    return CheckListDocument(schema_="backend-caps/check-list@1", checks=tuple(checks))


def check_document(run: CheckRun, known: Sequence[Check]) -> CheckDocument:
    """Write down what became of a backend; `known` are all checks, chosen or not."""
    results, source = run.results, run.results.subject.source
    counts = Counter(
        case.scenario.forward
        for own in results.checks
        for case in own.cases
        if case.scenario is not None
    )
    return CheckDocument(
        schema_=CHECK_SCHEMA,
        backend=results.subject.name,
        distribution=source.distribution,
        version=source.version,
        declared_at=None if source.declared_at is None else _nearby(source.declared_at),
        kit_version=version("backend-caps"),
        device=results.device,
        effort=EffortDocument(seeds=[*run.effort.seeds], num_steps=run.effort.num_steps),
        status=_status(results).value,
        claims=[
            ClaimDocument(
                capability=each.capability,
                value=each.value,
                conditional=each.is_conditional or None,
                status=each.verdict.value,
                checks=[*each.checks],
                reason=each.reason,
            )
            for each in claims_of(results, known)
        ],
        checks=[_checked(own, run) for own in results.checks],
        exercised=[
            ExercisedDocument(
                forward=forward.value,
                role=forward.role.value,
                phase=forward.phase.value,
                batch_kind=forward.batch_kind.value,
                num_cases=counts[forward],
            )
            for forward in Forward
        ],
        lines=None if run.lines is None else _lines(run.lines),
        said=[SaidDocument(text=text, count=count) for text, count in run.said.items()],
    )


def _status(results: Results) -> Verdict:
    """Return the verdict on the whole: one fault fails it; without a case nothing is known."""
    found = {own.status for own in results.checks}
    for status in (Verdict.FAILED, Verdict.HELD):
        if status in found:
            return status
    return Verdict.NOT_CHECKED


def _checked(own: CheckResult, run: CheckRun) -> CheckedDocument:
    check = own.check
    return CheckedDocument(
        code=check.code,
        title=check.title,
        claims=[*check.claims],
        proves=check.proves,
        cannot=check.cannot,
        applies=check.excuse(run.results.subject) is None,
        status=own.status.value,
        reason=own.reason or None,
        cases=[case.name for case in own.cases],
        num_blocked=own.num_blocked,
        findings=[_finding(each, run) for each in own.findings],
        hints=[
            HintDocument(check=check.code, claim=hint.claim, what=hint.what) for hint in own.hints
        ],
        seconds=round(own.seconds, 3),
    )


def _finding(finding: Finding, run: CheckRun) -> FindingDocument:
    case, site = finding.case, finding.fault.site
    device = run.results.device
    options = [] if device == DEVICE_NAME else [f" --device {device}"]
    options += [f" --path {quote(str(folder))}" for folder in run.path]
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
        replay=finding.replay + "".join(options),
    )


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
    """Name a file relative to the working directory, where it lies below that."""
    path, here = Path(file), Path.cwd()
    return path.relative_to(here).as_posix() if path.is_relative_to(here) else file
