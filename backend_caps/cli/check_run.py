"""What `backend-caps check` runs, and the document of what it found. Loads torch."""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from platform import python_version
from shlex import quote
from typing import Self, cast

import click
from rich.console import Console

from backend_caps import kit
from backend_caps.cli.options import importable
from backend_caps.discovery.registry import Registry
from backend_caps.kit.check import engine_adapter
from backend_caps.kit.checks import CHECKS
from backend_caps.kit.costs import BatchCost, costs_of
from backend_caps.kit.dimensions import values_of
from backend_caps.report import check_documents as documents
from backend_caps.report.check_catalog import checks_named
from backend_caps.report.issue import issue_text
from backend_caps.report.progress import terminal_of
from backend_caps.report.words import counted
from backend_caps.simulator import DEVICE_NAME
from backend_caps.supervisor import Log


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckOptions:
    """The command's options that say what to check, and how much of it."""

    device: str
    only: tuple[str, ...]
    """Codes of checks; none is all."""
    case: str | None
    """One case to run alone."""
    quick: bool
    seeds: int | None
    """How often each scenario is drawn; None: as `quick` says."""
    lines: bool | None
    """Whether lines are counted; None: unless `quick`."""
    evidence: str | None
    """The file to keep evidence in; empty: beside the implementation; None: nowhere."""
    path: tuple[Path, ...]
    """Folders to look for plugins in, instead of the environment."""
    engine: str | None
    """The engine whose built-in backend is checked; None: a plugin's."""
    without: tuple[str, ...]
    """Forwards that are left out."""
    case_deadline: float
    """How long each case may take, in seconds."""
    report_issue: Path | None
    """The file of a report to the engine's maintainers; None: none is written."""

    @classmethod
    def from_context(cls, ctx: click.Context) -> Self:
        """Read the options from the command line."""
        return cls(**{option.name: ctx.params[option.name] for option in fields(cls)})

    @property
    def checks(self) -> Sequence[kit.Check]:
        """All checks for such a backend."""
        return CHECKS if self.engine is None else engine_adapter(self.engine).checks

    @property
    def effort(self) -> kit.Effort:
        """How much is tried."""
        effort = kit.Effort.quick() if self.quick else kit.Effort()
        return effort if self.seeds is None else replace(effort, seeds=range(self.seeds))

    @property
    def counts_lines(self) -> bool:
        """Whether to count which lines of the backend run."""
        return self.engine is None and (not self.quick if self.lines is None else self.lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The results of checks, and what else the document states."""

    results: kit.Results
    effort: kit.Effort
    lines: Sequence[kit.FileLines] | None = None
    """None where they were not counted."""
    costs: Sequence[BatchCost] | None = None
    """None where they were not counted."""
    printed: Mapping[str, int] = field(default_factory=dict)
    path: tuple[Path, ...] = ()
    """The folders that plugins were looked for in; none is the environment."""


def check_backend(
    name: str, options: CheckOptions, registry: Registry, log: Log | None = None
) -> documents.CheckDocument:
    """Check a backend, and write down what became of its claims.

    Args:
        name: as flags name it.
        options: what to check.
        registry: where it is declared.
        log: results of a process that native code ended, and where this one logs its results.

    Raises:
        BackendCapsError: there is no such backend, check, case or device, it cannot be built, or
            its evidence cannot be written.
    """
    chosen = checks_named(options.checks, options.only)
    kit.require_device(options.device)
    terminal = terminal_of(sys.stderr)  # before what backends print there is kept
    with importable(options.path), kit.single_threaded(), kit.muffled() as output:
        subject = _subject(name, options, registry)
        run = _run(subject, chosen, options, log, terminal, output)
    document = check_document(replace(run, path=options.path), options.checks)
    if options.evidence is not None and not document.is_stopped:
        _keep_evidence(run, options.evidence, options.path)
    if options.report_issue is not None and options.engine is not None:
        _report_issue(run.results, options.engine, options.report_issue)
    return document


def _subject(name: str, options: CheckOptions, registry: Registry) -> kit.Subject:
    find = kit.subject_named if options.engine is None else engine_adapter(options.engine).subject
    subject, left_out = find(registry, name), frozenset(options.without)
    words = tuple(word for forward in sorted(left_out) for word in ("--without", forward))
    return replace(subject, without=left_out, words=(*subject.words, *words))


def _keep_evidence(run: Run, name: str, path: tuple[Path, ...]) -> None:
    """Write evidence, and say where."""
    evidence = kit.evidence_of(run.results, run.effort, CHECKS, path=path)
    file = Path(name) if name else kit.evidence_file(run.results.subject, path=path)
    is_new = kit.write_evidence(evidence, file)
    click.echo(f"evidence {'written to' if is_new else 'is as it was in'} {file}", err=True)


def _report_issue(results: kit.Results, engine: str, file: Path) -> None:
    """Write a report to an engine's maintainers, and say where."""
    from backend_caps.kit.issue import issue_entries  # noqa: PLC0415 - where one is asked for

    subject, names = results.subject, (engine, "torch", "triton", "backend-caps")
    entries = [*issue_entries(results, engine, engine_adapter(engine))]
    if not entries:
        click.echo(f"no report was written to {file}: nothing was found", err=True)
        return
    versions = {"python": python_version(), **{name: version(name) for name in names}}
    file.write_text(issue_text(subject.name, versions, subject.stand_ins, entries), "utf-8")
    click.echo(f"report of {counted(len(entries), 'fault')} written to {file}", err=True)


def _run(
    subject: kit.Subject,
    chosen: Sequence[kit.Check],
    options: CheckOptions,
    log: Log | None,
    terminal: Console,
    output: kit.DistinctLines,
) -> Run:
    """Run checks, in two processes, or the one case that was named."""
    implementation = subject.declaration.implementation
    assert implementation is not None, "it was imported by this name"
    device, deadline_s, effort = options.device, options.case_deadline, options.effort
    journal = None if log is None else kit.Journal(log, subject, chosen, deadline_s=deadline_s)
    known, observers = ({}, []) if journal is None else (journal.known, [journal])
    lines = kit.LineCounter(implementation) if options.counts_lines else None
    fork = kit.Fork(report=partial(_seen, lines, output, dict(output.lines)))
    with lines or nullcontext(), _collected_garbage():
        if options.case is None:
            with kit.CheckProgress(len(chosen), terminal) as progress:
                results = kit.run_checks(
                    subject,
                    chosen,
                    device=device,
                    effort=effort,
                    observers=[progress, *observers],
                    known=known,
                    deadline_s=deadline_s,
                    fork=fork,
                )
        else:
            check, case = kit.find_case(subject, chosen, options.case)
            result = known.get(check.code) or kit.run_case(
                subject, check, case, device=device, observers=observers, deadline_s=deadline_s
            )
            results = kit.Results(subject=subject, device=device, checks=[result])
            effort = replace(effort, seeds=(case.seed,))
    if fork.is_lost or (journal is not None and journal.has_crashed):
        lines = None  # the process that crashed held the counts of its lines
    is_whole = not options.only and options.case is None and device == DEVICE_NAME
    costs = list(costs_of(subject)) if is_whole else None
    return _joined(Run(results=results, effort=effort, costs=costs), lines, output, fork)


@contextmanager
def _collected_garbage() -> Iterator[None]:
    """Collect garbage, which the command line does not, but none of what is there already.

    What a case leaves may hold hundreds of megabytes.
    """
    gc.freeze()
    gc.enable()
    try:
        yield
    finally:
        gc.unfreeze()


_Seen = tuple[Sequence[kit.FileLines], Mapping[str, int]]
"""Lines of the backend that ran, and printed lines."""


def _seen(
    lines: kit.LineCounter | None, output: kit.DistinctLines, before: Mapping[str, int]
) -> _Seen:
    """Return which lines of the backend ran in a fork, and what it printed."""
    printed = Counter(output.lines)
    printed.subtract(before)
    return [] if lines is None else lines.files, +printed


def _joined(
    run: Run, lines: kit.LineCounter | None, output: kit.DistinctLines, fork: kit.Fork
) -> Run:
    """Add what was seen in both processes."""
    files = {} if lines is None else {own.file: own for own in lines.files}
    there, printed = cast("_Seen", fork.reported or ([], {}))
    for own in there:
        here = files.get(own.file, own)
        missed = tuple(sorted({*here.missed} & {*own.missed}))
        files[own.file] = replace(own, missed=missed)
    whole = Counter(output.lines) + Counter(printed)
    return replace(run, lines=None if lines is None else list(files.values()), printed=dict(whole))


def check_document(run: Run, known: Sequence[kit.Check]) -> documents.CheckDocument:
    """Write down what became of a backend; `known` are all checks, run or not."""
    results, source = run.results, run.results.subject.source
    statuses = {own.status for own in results.checks}
    # One fault fails the whole; without a case nothing is known.
    worst = next((own for own in (kit.Verdict.FAILED, kit.Verdict.HELD) if own in statuses), None)
    return documents.CheckDocument(
        schema_=documents.CHECK_SCHEMA,
        backend=results.subject.name,
        distribution=source.distribution,
        version=source.version,
        declared_at=None if source.declared_at is None else _nearby(source.declared_at),
        kit_version=version("backend-caps"),
        device=results.device,
        stand_ins=list(results.subject.stand_ins) or None,
        effort=documents.EffortDocument.of(run.effort),
        status=(worst or kit.Verdict.NOT_CHECKED).value,
        claims=list(kit.claims_of(results, known)),
        checks=[_checked(own, run) for own in results.checks],
        exercised=_exercised(results),
        dimensions=_dimensions(results),
        costs=None if run.costs is None else [own.document() for own in run.costs],
        lines=None if run.lines is None else _lines(run.lines),
        printed=[
            documents.PrintedDocument(text=text, count=count) for text, count in run.printed.items()
        ],
    )


def _checked(own: kit.CheckResult, run: Run) -> documents.CheckedDocument:
    code = own.check.code
    return documents.CheckedDocument.of(
        own,
        **own.check.about.model_dump(),
        applies=own.check.excuse(run.results.subject) is None,
        reason=own.reason or None,
        cases=[case.name for case in own.cases],
        findings=[_finding(each, run) for each in own.findings],
        hints=[documents.HintDocument(check=code, **asdict(hint)) for hint in own.hints],
        seconds=round(own.seconds, 3),
    )


def _finding(finding: kit.Finding, run: Run) -> documents.FindingDocument:
    case, site, device = finding.case, finding.fault.site, run.results.device
    # Options that a run had and a case does not name.
    options = [] if device == DEVICE_NAME else [f"--device {device}"]
    options += [f"--path {quote(str(folder))}" for folder in run.path]
    return documents.FindingDocument.of(
        case,
        claims=finding.claims,
        what=finding.fault.what,
        case=case.name,
        scenario=None if case.scenario is None else case.scenario.name,
        schedule=str(case.schedule),
        file=None if site is None else _nearby(site.file),
        line=None if site is None else site.line,
        replay=" ".join([finding.replay, *options]),
    )


def _exercised(results: kit.Results) -> list[documents.ExercisedDocument]:
    cases = [case for own in results.checks for case in own.cases]
    counts = Counter(case.scenario.forward for case in cases if case.scenario is not None)
    return [
        documents.ExercisedDocument(
            forward=own.value,
            role=own.role.value,
            phase=own.phase.value,
            batch_kind=own.batch_kind.value,
            num_cases=counts[own],
        )
        for own in kit.Forward
    ]


def _dimensions(results: kit.Results) -> list[documents.DimensionDocument]:
    cases = [case.scenario for own in results.checks for case in own.cases]
    counts = values_of(scenario for scenario in cases if scenario is not None)
    return [
        documents.DimensionDocument(dimension=name, values=dict(values))
        for name, values in counts.items()
    ]


def _lines(files: Sequence[kit.FileLines]) -> documents.LinesDocument:
    found = [
        documents.FileLinesDocument(
            file=_nearby(str(own.file)),
            num_lines=len(own.lines),
            num_run=len(own.lines) - len(own.missed),
            missing=own.missing,
        )
        for own in files
    ]
    return documents.LinesDocument(
        num_lines=sum(own.num_lines for own in found),
        num_run=sum(own.num_run for own in found),
        files=found,
    )


def _nearby(file: str) -> str:
    """Name a file relative to the working directory where it is below it."""
    path, here = Path(file), Path.cwd()
    return path.relative_to(here).as_posix() if path.is_relative_to(here) else file
