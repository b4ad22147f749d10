"""A log of each step of a run of checks, written ahead: a new process goes on after a crash."""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from io import BytesIO
from itertools import pairwise
from typing import TypeAlias

from backend_caps.kit.check import Check, CheckResult, Fault
from backend_caps.kit.execution import CheckStep
from backend_caps.kit.rig import deadline_of, did_not_end
from backend_caps.kit.subject import Subject
from backend_caps.simulator import Site
from backend_caps.supervisor import Crash, Log

_GRACE_S = 5.0
"""How much longer a process lives than its case may take: Python code ends by itself before."""


_Event: TypeAlias = tuple[CheckStep, float]
"""A step, and when it was, by the clock that only goes on."""


class Journal:
    """Write each case down before it runs, and what became of it.

    It is an observer. Checks that a process before this one ended, or that ended it, are `known`:
    a case under way is then a fault of its check, whose other cases are left out; hints that were
    computed are none.

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
        self.known: Mapping[str, CheckResult] = dict(self._results(events))
        """What became of checks before, by their codes."""
        self.has_crashed = any(isinstance(own, Crash) for own in events)
        """Whether a process before this one was ended, and with it what only that one knew."""

    def __call__(self, step: CheckStep) -> None:
        """Write down what became of a check so far, and the case that runs next."""
        if step.result.check.code in self.known:
            return
        self._log.keep_process()
        into = BytesIO()
        _Pickler(into).dump((step, time.monotonic()))
        self._log.write(into.getvalue())
        if step.case is not None and self._deadline_s is not None:
            deadline_s = deadline_of(step.case.num_steps, self._deadline_s)
            self._log.end_process_after(deadline_s + _GRACE_S)

    def _read(self) -> Iterator[_Event | Crash]:
        written = BytesIO(self._log.read())
        end = len(written.getbuffer())
        while written.tell() < end:
            yield _Unpickler(written, self._checks).load()

    def _results(self, events: Sequence[_Event | Crash]) -> Iterator[tuple[str, CheckResult]]:
        """List what became of each check that ended, or was ended."""
        for before, event in pairwise([None, *events]):
            match before, event:
                case _, (CheckStep(result=result, is_done=True), _):
                    yield result.check.code, result
                case (CheckStep(is_done=False) as step, at_s), Crash() as crash:
                    result = self._ended_by(crash, step, crash.at_s - at_s)
                    yield result.check.code, result

    def _ended_by(self, crash: Crash, step: CheckStep, seconds: float) -> CheckResult:
        """Return the result of a check that a crash ended, so long behind a step."""
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
