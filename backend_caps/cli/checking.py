"""What `backend-caps check` runs, and what it was asked. Loads torch."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import click
from rich.console import Console

from backend_caps.cli.checked import Ran, check_document, check_list_document
from backend_caps.cli.options import importable
from backend_caps.discovery.registry import Registry
from backend_caps.kit import (
    Check,
    CheckObservers,
    CheckProgress,
    Effort,
    Journal,
    LineCounter,
    Results,
    Subject,
    checks_named,
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
from backend_caps.report.check_documents import CheckDocument, CheckListDocument
from backend_caps.report.progress import terminal_of
from backend_caps.supervisor import Log


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
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
    """Whose own backend it is; None: a plugin's."""
    without: frozenset[str]
    """Forwards that are left out."""
    deadline_s: float
    """How long each case may take."""

    @property
    def known(self) -> Sequence[Check]:
        """List the checks that there are for what it is."""
        return CHECKS if self.engine is None else engine_adapter(self.engine).checks

    @classmethod
    def from_context(cls, ctx: click.Context) -> Self:
        """Read what the command line says."""
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


def listed(asked: Asked) -> CheckListDocument:
    """Write down which checks there are, of those that were asked for.

    Raises:
        UnknownCheckError: there is none of a name.
    """
    return check_list_document(checks_named(asked.known, asked.only))


def checked(name: str, asked: Asked, registry: Registry, log: Log | None = None) -> CheckDocument:
    """Check a backend, and write down what became of its claims.

    Args:
        name: as flags name it.
        asked: what to check.
        registry: where it is declared.
        log: what a process left that its native code ended, and where this one leaves the same.

    Raises:
        BackendCapsError: there is no such backend, check, case or device, it cannot be built, or
            its evidence cannot be written.
    """
    chosen = checks_named(asked.known, asked.only)
    require_device(asked.device)
    terminal = terminal_of(sys.stderr)  # before what backends say there is kept
    with importable(asked.path), single_threaded(), muffled() as said:
        subject = _subject(name, asked, registry)
        ran = _run(subject, chosen, asked, log, terminal)
    document = check_document(replace(ran, said=said.lines, path=asked.path), asked.known)
    if asked.evidence is not None and not document.is_stopped:
        _keep(ran, asked.evidence, asked.path)
    return document


def _subject(name: str, asked: Asked, registry: Registry) -> Subject:
    find = subject_named if asked.engine is None else engine_adapter(asked.engine).subject
    subject, left_out = find(registry, name), sorted(asked.without)
    words = tuple(word for forward in left_out for word in ("--without", forward))
    return replace(subject, without=asked.without, words=(*subject.words, *words))


def _keep(ran: Ran, name: str, path: tuple[Path, ...]) -> None:
    """Write evidence, and say where."""
    evidence = evidence_of(ran.results, ran.effort, CHECKS, path=path)
    file = Path(name) if name else evidence_file(ran.results.subject, path=path)
    is_new = write_evidence(evidence, file)
    click.echo(f"evidence {'written to' if is_new else 'is as it was in'} {file}", err=True)


def _run(
    subject: Subject, chosen: Sequence[Check], asked: Asked, log: Log | None, terminal: Console
) -> Ran:
    implementation = subject.declaration.implementation
    assert implementation is not None, "it was imported by this name"
    effort = asked.effort
    journal = None
    if log is not None:
        journal = Journal(log, subject, chosen, deadline_s=asked.deadline_s)
    with ExitStack() as stack:
        lines = LineCounter(implementation) if asked.counts_lines else None
        if lines is not None:
            stack.enter_context(lines)
        if asked.case is None:
            results = _run_all(subject, chosen, asked, journal, terminal)
        else:
            results, effort = _run_one(subject, chosen, asked.case, asked, journal)
    if journal is not None and journal.has_crashed:
        lines = None  # what another process counted is gone with it
    return Ran(results=results, effort=effort, lines=None if lines is None else lines.files)


def _run_all(
    subject: Subject,
    chosen: Sequence[Check],
    asked: Asked,
    journal: Journal | None,
    terminal: Console,
) -> Results:
    with CheckProgress(len(chosen), terminal) as progress:
        return run_checks(
            subject,
            chosen,
            device=asked.device,
            effort=asked.effort,
            observer=progress if journal is None else CheckObservers(progress, journal),
            known={} if journal is None else journal.known,
            deadline_s=asked.deadline_s,
        )


def _run_one(
    subject: Subject, chosen: Sequence[Check], name: str, asked: Asked, journal: Journal | None
) -> tuple[Results, Effort]:
    check, case = find_case(subject, chosen, name)
    result = None if journal is None else journal.known.get(check.code)
    if result is None:
        result = run_case(
            subject,
            check,
            case,
            device=asked.device,
            observer=journal,
            deadline_s=asked.deadline_s,
        )
    results = Results(subject=subject, device=asked.device, checks=[result], exercised=frozenset())
    return results, replace(asked.effort, seeds=(case.seed,))
