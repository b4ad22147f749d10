"""Run checks, case after case; observers draw the progress and log each step.

The log is written ahead of each case: after a crash, a new process continues from it.
"""

from __future__ import annotations

import gc
import pickle
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from io import BytesIO
from itertools import pairwise
from typing import Self, TypeAlias

from rich.console import Console
from rich.progress import MofNCompleteColumn, TextColumn

from backend_caps.kit.check import Case, Check, CheckResult, Effort, Fault, Hint, Results, Verdict
from backend_caps.kit.errors import BaselineError, KitError
from backend_caps.kit.rig import CASE_DEADLINE_S, OverdueError, Rig, deadline_of, ends_within
from backend_caps.kit.subject import Subject
from backend_caps.report.progress import bar, progress_line, terminal_of
from backend_caps.simulator import DEVICE_NAME, Site
from backend_caps.supervisor import Crash, Log


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckStep:
    """The progress of a check."""

    result: CheckResult
    """Its result so far; final where `is_done`."""
    num_cases: int = 0
    """All of its cases."""
    case: Case | None = None
    """The next case; None after the last one, before hints are computed."""
    is_done: bool = False
    """Whether the check has ended."""


CheckObserver = Callable[[CheckStep], None]
"""Called before each case of a check, after the last one, and once the check is done."""


class CheckProgress:
    """Draw a progress line within a `with` block: the running check, its cases and findings.

    It is an observer: `run_checks(..., observers=[progress])`. Where standard error is no terminal,
    it draws nothing. The block's end clears the line.

    Args:
        num_checks: the number of checks.
        console: where to draw; by default `sys.stderr` as it is now, even if it is replaced later.
    """

    def __init__(self, num_checks: int, console: Console | None = None) -> None:
        console = terminal_of(sys.stderr) if console is None else console
        self._num_checks, self._num_ended, self._num_findings = num_checks, 0, 0
        self._progress = progress_line(
            TextColumn("check {task.fields[place]}"),
            TextColumn("{task.description}"),
            bar(),
            MofNCompleteColumn(),
            TextColumn("cases"),
            TextColumn("{task.fields[found]}"),
            console=console,
            redirects=False,
        )
        self._task = self._progress.add_task("", total=0, place="", found="")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._progress.stop()

    def __call__(self, step: CheckStep) -> None:
        """Draw the step."""
        result = step.result
        if step.is_done:
            self._num_ended += 1
            self._num_findings += len(result.findings)
            return
        num_findings = self._num_findings + len(result.findings)
        self._progress.update(
            self._task,
            description=result.check.code,
            total=step.num_cases,
            completed=len(result.cases) + result.num_blocked,
            place=f"{self._num_ended + 1}/{self._num_checks}",
            found=f"{num_findings} found" if num_findings else "",
        )


_MOST_FINDINGS = 5
"""Findings after which a check ends: more of the same take time and add nothing."""
_MOST_OVERDUE = 2
"""Overdue cases after which a check ends: each takes its whole deadline."""


def run_checks(
    subject: Subject,
    checks: Sequence[Check],
    *,
    device: str = DEVICE_NAME,
    effort: Effort | None = None,
    observers: Sequence[CheckObserver] = (),
    known: Mapping[str, CheckResult] | None = None,
    deadline_s: float = CASE_DEADLINE_S,
) -> Results:
    """Run checks of a backend, each in all its cases.

    Args:
        subject: the backend.
        checks: the checks, in order; one is skipped where a check in its `after` failed.
        device: `sim`, `cpu` or `cuda`.
        effort: how many cases are run, and how long.
        observers: called at each step, in their order.
        known: results by code of an earlier run that this one continues.
        deadline_s: seconds that a case may take, in proportion more where it has over 100 steps;
            an overdue case is a finding. Without effect outside of the main thread.
    """
    rig = Rig(subject=subject, device=device, deadline_s=deadline_s)
    effort = effort or Effort()
    results: list[CheckResult] = []
    for check in checks:
        result = (known or {}).get(check.code)
        if result is None:
            result = _run_check(check, rig, effort, observers, results)
        results.append(result)
        _notify(observers, CheckStep(result=result, is_done=True))
    return Results(subject=subject, device=device, checks=results)


def run_case(
    subject: Subject,
    check: Check,
    case: Case,
    *,
    device: str = DEVICE_NAME,
    observers: Sequence[CheckObserver] = (),
    deadline_s: float = CASE_DEADLINE_S,
) -> CheckResult:
    """Run one case alone; the arguments are those of `run_checks`."""
    rig = Rig(subject=subject, device=device, deadline_s=deadline_s)
    return _run_cases(check, rig, [case], observers)


def find_case(subject: Subject, checks: Sequence[Check], name: str) -> tuple[Check, Case]:
    """Find a case by the name that a finding prints; its seed need not be a default one.

    Raises:
        KitError: no check has such a case for this backend.
    """
    code, _, seed = name.partition("/")[0], *name.rpartition("#")[1:]
    if seed.isdecimal():
        for check in checks:
            if check.code != code or check.excuse(subject) is not None:
                continue
            for case in check.cases(subject, Effort(seeds=(int(seed),))):
                if case.name == name:
                    return check, case
    raise KitError(
        "unknown-case",
        f"backend {subject.name!r} has no case {name!r}; a case as a finding prints it was "
        f"expected: CHECK/SCENARIO@SCHEDULE#SEED. Copy it from the run that found it, of the same "
        f"declaration.",
    )


def cases_on(device: str, check: Check, subject: Subject, effort: Effort) -> Sequence[Case]:
    """List the cases of a check that a device can run: a real one has no schedules to choose."""
    cases = check.cases(subject, effort)
    return [case for case in cases if device == DEVICE_NAME or str(case.schedule) == "eager"]


def _notify(observers: Sequence[CheckObserver], step: CheckStep) -> None:
    for observer in observers:
        observer(step)


def _run_check(
    check: Check,
    rig: Rig,
    effort: Effort,
    observers: Sequence[CheckObserver],
    before: Sequence[CheckResult],
) -> CheckResult:
    failed = [own.check.code for own in before if own.status is Verdict.FAILED]
    stopped = [own.check.code for own in before if any(each.fault.stops for each in own.findings)]
    reason = _waits_for(stopped or [code for code in check.after if code in failed])
    reason = reason or check.unfit(rig.device)
    if reason:
        return CheckResult(check=check, reason=reason)
    if (reason := check.excuse(rig.subject)) is not None:
        result = CheckResult(check=check, reason=reason)
        _notify(observers, CheckStep(result=result))
    else:
        cases = cases_on(rig.device, check, rig.subject, effort)
        result = _run_cases(check, rig, cases, observers)
    if result.num_blocked and result.status is Verdict.NOT_CHECKED and _BASELINE in failed:
        return replace(result, reason=_waits_for([_BASELINE]))
    return result if result.findings else _with_hints(result, rig)


_BASELINE = "numerics"
"""The check that finds what is wrong with the runs that others compare with."""


def _waits_for(failed: Sequence[str]) -> str:
    """Return why a check is not made behind others that failed; empty where none did."""
    return f"says nothing while {', '.join(failed)} fails" if failed else ""


def _with_hints(result: CheckResult, rig: Rig) -> CheckResult:
    """Add the check's hints to its result; none where computing them takes too long."""
    started, hints = time.perf_counter(), result.check.hints
    if hints is None:
        return result
    found: tuple[Hint, ...] = ()
    # Hints run all cases once more, so they get the deadlines of all.
    deadlines_s = [deadline_of(case.num_steps, rig.deadline_s) for case in result.cases]
    with suppress(OverdueError), ends_within(sum(deadlines_s) or rig.deadline_s):
        found = tuple(hints(rig.subject, result.cases, rig))
    return replace(result, hints=found, seconds=result.seconds + time.perf_counter() - started)


def _run_cases(
    check: Check, rig: Rig, cases: Sequence[Case], observers: Sequence[CheckObserver]
) -> CheckResult:
    """Run cases until enough faults are found."""
    started, num_overdue = time.perf_counter(), 0
    result = CheckResult(check=check, reason="it has no case for what is claimed")
    for case in cases:
        _notify(observers, CheckStep(result=result, num_cases=len(cases), case=case))
        try:
            faults, is_overdue = _faults(check, rig, case)
        except BaselineError as error:
            reason = result.reason and str(error)
            result = replace(result, reason=reason, num_blocked=result.num_blocked + 1)
        else:
            num_overdue += is_overdue
            result = result.with_case(rig.subject, case, faults)
        result = replace(result, seconds=time.perf_counter() - started)
        if len(result.findings) >= _MOST_FINDINGS or num_overdue >= _MOST_OVERDUE:
            break
    _notify(observers, CheckStep(result=result, num_cases=len(cases)))
    return result


def _faults(check: Check, rig: Rig, case: Case) -> tuple[list[Fault], bool]:
    """Run a case: its faults, with what the backend raises, and whether it was overdue."""
    faults: list[Fault] = []
    is_overdue, deadline_s = False, deadline_of(case.num_steps, rig.deadline_s)
    try:
        with ends_within(deadline_s):
            for fault in check.run(rig, case):
                faults.append(fault)  # noqa: PERF402 - what was found before the deadline stands
    except BaselineError:
        raise
    except (OverdueError, Exception) as error:  # noqa: BLE001 - a plugin raises what it likes
        is_overdue = isinstance(error, OverdueError)
        what = did_not_end(deadline_s) if is_overdue else f"raised {type(error).__name__}: {error}"
        faults.append(Fault(what=what, site=rig.subject.line_in(error.__traceback__)))
    finally:
        # Drops the case's backend and tensors before the next case builds its own.
        gc.collect(0)
    return faults, is_overdue


def did_not_end(deadline_s: float) -> str:
    """Return the text of the fault of an overdue case."""
    return f"did not end within {deadline_s:g} s"


_GRACE_S = 5.0
"""Time between a case's deadline and the end of its process: `ends_within` gets to act first."""


_Event: TypeAlias = tuple[CheckStep, float]
"""A step, and its time by `time.monotonic`."""


class Journal:
    """Log each case before it runs, and its result.

    It is an observer. A check that ended in an earlier process, or that crashed it, is in `known`.
    A crash within a case is a fault of its check, whose other cases are left out; a crash while
    hints are computed only drops the hints.

    Args:
        log: the log, with the events of earlier processes.
        subject: the backend.
        checks: all checks that may run.
        deadline_s: seconds that a case may take before faulthandler ends the process, for native
            code: `ends_within` interrupts Python code. None: no limit.
    """

    def __init__(
        self,
        log: Log,
        subject: Subject,
        checks: Sequence[Check],
        *,
        deadline_s: float | None = None,
    ) -> None:
        self._log, self._subject, self._deadline_s = log, subject, deadline_s
        self._checks = {check.code: check for check in checks}
        written, events = BytesIO(log.read()), list[_Event | Crash]()
        while written.tell() < log.num_bytes:
            events.append(_Unpickler(written, self._checks).load())
        self.known: Mapping[str, CheckResult] = dict(self._results(events))
        """Results of checks that ended in earlier processes, by code."""
        self.has_crashed = any(isinstance(event, Crash) for event in events)
        """Whether an earlier process crashed, which loses its counts of lines that ran."""

    def __call__(self, step: CheckStep) -> None:
        """Log the result of a check so far, and its next case."""
        if step.result.check.code in self.known:
            return
        self._log.keep_process()
        pickled = BytesIO()
        _Pickler(pickled).dump((step, time.monotonic()))
        self._log.write(pickled.getvalue())
        if step.case is not None and self._deadline_s is not None:
            deadline_s = deadline_of(step.case.num_steps, self._deadline_s)
            self._log.end_process_after(deadline_s + _GRACE_S)

    def _results(self, events: Sequence[_Event | Crash]) -> Iterator[tuple[str, CheckResult]]:
        """List the result of each check that ended or crashed, with its code."""
        for before, event in pairwise([None, *events]):
            match before, event:
                case _, (CheckStep(result=result, is_done=True), _):
                    yield result.check.code, result
                case (CheckStep(is_done=False) as step, at_s), Crash() as crash:
                    result = self._ended_by(crash, step, crash.at_s - at_s)
                    yield result.check.code, result

    def _ended_by(self, crash: Crash, step: CheckStep, seconds: float) -> CheckResult:
        """Return the result of a check that crashed some seconds after a step."""
        result, case = step.result, step.case
        if case is not None:
            what = str(crash)
            if crash.is_overdue and self._deadline_s is not None:
                what = did_not_end(deadline_of(case.num_steps, self._deadline_s))
            sites = (Site(file, line) for file, line in crash.places if self._subject.owns(file))
            fault = Fault(what=what, site=next(sites, None))
            result = result.with_case(self._subject, case, [fault])
        return replace(result, seconds=result.seconds + seconds)


class _Pickler(pickle.Pickler):
    """Pickles a check as its code: it holds lambdas, which cannot be pickled."""

    def persistent_id(self, obj: object) -> str | None:
        """Return a check's code."""
        return obj.code if isinstance(obj, Check) else None


class _Unpickler(pickle.Unpickler):
    """Restores checks from their codes."""

    def __init__(self, file: BytesIO, checks: Mapping[str, Check]) -> None:
        super().__init__(file)
        self._checks = checks

    def persistent_load(self, pid: str) -> Check:
        """Return the check of a code."""
        return self._checks[pid]
