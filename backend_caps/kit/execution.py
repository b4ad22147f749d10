"""Run checks, case after case, in two processes; observers draw the progress and log each step."""

from __future__ import annotations

import faulthandler
import gc
import os
import pickle
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Self

from rich.console import Console
from rich.progress import MofNCompleteColumn, TextColumn

from backend_caps.kit.check import Case, Check, CheckResult, Effort, Fault, Hint, Results, Verdict
from backend_caps.kit.errors import BaselineError, KitError
from backend_caps.kit.journal import (
    GRACE_S,
    CheckObserver,
    CheckStep,
    did_not_end,
    pickled,
    unpickled,
)
from backend_caps.kit.rig import CASE_DEADLINE_S, OverdueError, Rig, deadline_of, ends_within
from backend_caps.kit.second_process import SecondProcess, ends_with
from backend_caps.kit.subject import Subject
from backend_caps.report.progress import bar, progress_line, terminal_of
from backend_caps.simulator import DEVICE_NAME


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
    fork: Fork | None = None,
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
        fork: runs some of the checks in a second process, on Linux and without CUDA; None: all run
            in this one.
    """
    rig = Rig(subject=subject, device=device, deadline_s=deadline_s)
    effort, known = effort or Effort(), known or {}
    results = dict(known)
    for result in known.values():
        _notify(observers, CheckStep(result=result, is_done=True))

    def run(check: Check, observers: Sequence[CheckObserver]) -> CheckResult:
        return _run_check(check, rig, effort, observers, list(results.values()))

    left = [check for check in checks if check.code not in known]
    for result in _ran(left, run, observers, None if device == "cuda" else fork, deadline_s):
        results[result.check.code] = result
        _notify(observers, CheckStep(result=result, is_done=True))
    return Results(subject=subject, device=device, checks=_in_order(checks, results))


@dataclass(slots=True)
class Fork:
    """A second process for checks, which has reports of its own."""

    report: Callable[[], object]
    """Called in the second process behind its last check; what it returns is pickled."""
    reported: object = None
    """What it returned; None where there was no such process, or it did not get there."""
    is_lost: bool = False
    """Whether there was one that did not report."""


_Run = Callable[[Check, Sequence[CheckObserver]], CheckResult]


def _ran(
    checks: Sequence[Check],
    run: _Run,
    observers: Sequence[CheckObserver],
    fork: Fork | None,
    deadline_s: float,
) -> Iterator[CheckResult]:
    """Run checks in this process, and in a fork of it; yield each result as it is known here."""
    # On other systems libraries that are loaded by now, such as macOS's, do not outlive a fork.
    if fork is None or len(checks) < _FEWEST or sys.platform != "linux":
        yield from (run(check, observers) for check in checks)
        return
    guard, codes = _guard(os.getpid(), deadline_s), {check.code: check for check in checks}
    second = SecondProcess(
        sorted(range(len(checks)), key=lambda number: checks[number].code not in _LONGEST),
        lambda number: pickled(run(checks[number], [guard])),
        lambda: pickle.dumps(fork.report()),
    )
    taken = set[int]()
    for number in second.numbers():
        taken.add(number)
        yield run(checks[number], observers)
    for number, result in second.brought():
        taken.add(number)
        yield unpickled(result, codes)
    fork.is_lost = second.report is None
    fork.reported = None if second.report is None else pickle.loads(second.report)  # noqa: S301
    yield from (run(own, observers) for number, own in enumerate(checks) if number not in taken)


_LONGEST = frozenset({"numerics", "serving", "memory", "races"})
"""Checks that go first, so that no process waits long for the other one's last."""
_FEWEST = 4
"""Checks below which a second process gains nothing."""


def _guard(parent: int, deadline_s: float) -> CheckObserver:
    """Return the observer that ends a fork behind its parent, and at a case's deadline."""

    def observe(step: CheckStep) -> None:
        ends_with(parent)
        faulthandler.cancel_dump_traceback_later()
        if step.case is not None:
            seconds = deadline_of(step.case.num_steps, deadline_s) + GRACE_S
            faulthandler.dump_traceback_later(seconds, exit=True, file=_NOWHERE)

    return observe


_NOWHERE = os.open(os.devnull, os.O_WRONLY)


def _in_order(checks: Sequence[Check], results: Mapping[str, CheckResult]) -> Sequence[CheckResult]:
    """List results in the order of checks; one that ran beside a check it stands behind waits."""
    listed: list[CheckResult] = []
    for check in checks:
        result, reason = results[check.code], _waits(check, listed)
        if reason:
            result = CheckResult(check=check, reason=reason)
        elif result.status is Verdict.NOT_CHECKED and result.num_blocked:
            # What is wrong with the runs to compare with is found by this check, and said once.
            failed = [own.check.code for own in listed if own.status is Verdict.FAILED]
            reason = _behind([_BASELINE] if _BASELINE in failed else [])
            result = replace(result, reason=reason or result.reason)
        listed.append(result)
    return listed


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
    reason = _waits(check, before) or check.unfit(rig.device)
    if reason:
        return CheckResult(check=check, reason=reason)
    if (reason := check.excuse(rig.subject)) is not None:
        result = CheckResult(check=check, reason=reason)
        _notify(observers, CheckStep(result=result))
    else:
        cases = cases_on(rig.device, check, rig.subject, effort)
        result = _run_cases(check, rig, cases, observers)
    return result if result.findings else _with_hints(result, rig)


_BASELINE = "numerics"
"""The check of the runs that others compare with."""


def _behind(failed: Sequence[str]) -> str:
    return f"says nothing while {', '.join(failed)} fails" if failed else ""


def _waits(check: Check, before: Sequence[CheckResult]) -> str:
    """Return why a check says nothing behind others that failed; empty where none did."""
    failed = [own.check.code for own in before if own.status is Verdict.FAILED]
    stopped = [own.check.code for own in before if any(each.fault.stops for each in own.findings)]
    return _behind(stopped or [code for code in check.after if code in failed])


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
