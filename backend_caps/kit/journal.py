"""The log of a check, written ahead of each case; after a crash, a new process continues it."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from itertools import pairwise
from typing import TypeAlias

from backend_caps.kit.check import Case, Check, CheckResult, Fault
from backend_caps.kit.rig import deadline_of
from backend_caps.kit.subject import Subject
from backend_caps.simulator import Site
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


def did_not_end(deadline_s: float) -> str:
    """Return the text of the fault of an overdue case."""
    return f"did not end within {deadline_s:g} s"


GRACE_S = 5.0
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
            self._log.end_process_after(deadline_s + GRACE_S)

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


def pickled(result: CheckResult) -> bytes:
    """Write a result, with checks as their codes."""
    written = BytesIO()
    _Pickler(written).dump(result)
    return written.getvalue()


def unpickled(result: bytes, checks: Mapping[str, Check]) -> CheckResult:
    """Read a result; checks are looked up by their codes."""
    read: CheckResult = _Unpickler(BytesIO(result), checks).load()
    return read


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
