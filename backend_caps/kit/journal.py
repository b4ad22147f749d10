"""A log of each step of a run of checks, written ahead: a new process goes on after a crash."""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from io import BytesIO

from backend_caps.kit.check import Case, Check, CheckResult, Fault, Finding, Verdict
from backend_caps.kit.execution import CheckObserver
from backend_caps.kit.rig import deadline_of, did_not_end
from backend_caps.kit.subject import Subject
from backend_caps.simulator import Site
from backend_caps.supervisor import Crash, Log

_GRACE_S = 5.0
"""How much longer a process lives than its case may take: Python code ends by itself before."""


class _Step(Enum):
    """What a process was about to do, or has done."""

    TRIES = "a case runs next"
    RAN = "a case has an answer"
    BLOCKED = "a case has none"
    ASKS = "hints are computed next"
    ENDED = "a check has a result"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Event:
    step: _Step
    case: Case | None = None
    findings: Sequence[Finding] = ()
    result: CheckResult | None = None
    at_s: float = field(default_factory=time.monotonic)


class Journal(CheckObserver):
    """Write each case down before it runs, and what became of it.

    It is an observer. Checks that a process before this one ended, or that ended it, are `known`:
    a case under way is then a fault of its check, whose other cases are left out; hints that were
    asked for are none.

    Args:
        log: where to write, and what processes before this one wrote.
        subject: the backend.
        checks: all that may run.
        deadline_s: how long each case may take before its process is ended from outside, which is
            for native code: the kit itself interrupts Python code. None: for ever.
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
        events = list(self._read())
        self.known: Mapping[str, CheckResult] = self._results(events)
        """What became of checks before, by their codes."""
        self.has_crashed = any(isinstance(own, Crash) for own in events)
        """Whether a process before this one was ended, and with it what only that one knew."""

    def tries(self, case: Case) -> None:
        """Write down a case that runs next."""
        self._write(_Event(step=_Step.TRIES, case=case))
        if self._deadline_s is not None:
            self._log.end_process_after(deadline_of(case.num_steps, self._deadline_s) + _GRACE_S)

    def ran(self, case: Case, findings: Sequence[Finding]) -> None:
        """Write down what a case found."""
        self._log.keep_process()
        self._write(_Event(step=_Step.RAN, case=case, findings=findings))

    def blocked(self, case: Case) -> None:
        """Write down a case without an answer."""
        self._log.keep_process()
        self._write(_Event(step=_Step.BLOCKED, case=case))

    def asks(self, result: CheckResult) -> None:
        """Write down a check whose hints are computed next."""
        self._write(_Event(step=_Step.ASKS, result=result))

    def end(self, result: CheckResult) -> None:
        """Write down what became of a check."""
        if result.check.code not in self.known:
            self._write(_Event(step=_Step.ENDED, result=result))

    def _write(self, event: _Event) -> None:
        into = BytesIO()
        _Pickler(into).dump(event)
        self._log.write(into.getvalue())

    def _read(self) -> Iterator[_Event | Crash]:
        written = BytesIO(self._log.read())
        end = len(written.getbuffer())
        while written.tell() < end:
            yield _Unpickler(written, self._checks).load()

    def _results(self, events: Sequence[_Event | Crash]) -> Mapping[str, CheckResult]:
        """Put together what became of each check that ended, or was ended."""
        known: dict[str, CheckResult] = {}
        under_way: list[_Event] = []
        for event in events:
            match event:
                case _Event(step=_Step.ENDED, result=CheckResult() as result):
                    known[result.check.code] = result
                    under_way.clear()
                case Crash():
                    known |= self._ended_by(event, under_way)
                    under_way.clear()
                case _Event():
                    under_way.append(event)
        return known

    def _ended_by(self, crash: Crash, under_way: Sequence[_Event]) -> Mapping[str, CheckResult]:
        """Return the result of the check that the crash interrupted."""
        if not under_way:
            return {}
        first, last = under_way[0], under_way[-1]
        match last:
            case _Event(step=_Step.ASKS, result=CheckResult() as result):
                return {result.check.code: result}
            case _Event(step=_Step.TRIES, case=Case() as case):
                ran = [own for own in under_way if own.step is _Step.RAN]
                found = [finding for own in ran for finding in own.findings]
                result = CheckResult(
                    check=self._checks[case.check],
                    status=Verdict.FAILED,
                    cases=[*(own.case for own in ran if own.case is not None), case],
                    num_blocked=sum(own.step is _Step.BLOCKED for own in under_way),
                    findings=[*found, self._finding(case, crash)],
                    seconds=crash.at_s - first.at_s,
                )
                return {case.check: result}
            case _:
                return {}

    def _finding(self, case: Case, crash: Crash) -> Finding:
        what = str(crash)
        if crash.is_overdue and self._deadline_s is not None:
            what = did_not_end(deadline_of(case.num_steps, self._deadline_s))
        sites = (Site(file, line) for file, line in crash.places if self._subject.owns(file))
        return Finding(
            subject=self._subject.name,
            claims=self._checks[case.check].claims,
            case=case,
            fault=Fault(what=what, site=next(sites, None)),
            words=self._subject.words,
        )


class _Pickler(pickle.Pickler):
    """Name checks: they hold functions."""

    def persistent_id(self, obj: object) -> str | None:
        """Name a check by its code."""
        return obj.code if isinstance(obj, Check) else None


class _Unpickler(pickle.Unpickler):
    """Find checks by their names."""

    def __init__(self, file: BytesIO, checks: Mapping[str, Check]) -> None:
        super().__init__(file)
        self._checks = checks

    def persistent_load(self, pid: str) -> Check:
        """Find a check by its code."""
        return self._checks[pid]
