from __future__ import annotations

import pickle
import signal
from collections.abc import Iterator
from dataclasses import replace

import pytest

from backend_caps.kit import (
    BaselineError,
    Case,
    CheckResult,
    Effort,
    Fault,
    Hint,
    Journal,
    Rig,
    Verdict,
    run_checks,
)
from backend_caps.simulator import Site
from backend_caps.supervisor import Crash, Log
from tests.kit.made import HONEST, ODD, odd_check

SEGV = -signal.SIGSEGV
LATER = replace(odd_check("later"), run=lambda _rig, _case: iter(()))
CHECKS = [ODD, LATER]


class EndedError(BaseException):
    """Ends a run as native code would: it reports nothing."""


def _ends(rig: Rig, case: Case) -> Iterator[Fault]:
    if case.seed == 2:
        raise EndedError
    if case.seed == 4:
        raise BaselineError(problem="it raised")
    yield from ODD.run(rig, case)


def _asked(_subject: object, _cases: object, _rig: object) -> Iterator[Hint]:
    raise EndedError


@pytest.fixture
def log() -> Iterator[Log]:
    """A log of no process yet."""
    log = Log()
    yield log
    log.close()


def _until_it_ends(log: Log, **changes: object) -> None:
    checks = [replace(ODD, **changes), LATER]  # type: ignore[arg-type] # fields of a check
    effort = Effort(seeds=(0, 4, 1, 2, 3))
    with pytest.raises(EndedError):
        run_checks(HONEST, checks, effort=effort, observers=[Journal(log, HONEST, checks)])


def _known(log: Log) -> dict[str, CheckResult]:
    return dict(Journal(log, HONEST, CHECKS).known)


def test_case_that_ends_the_process_is_a_finding(log: Log) -> None:
    """It is the check's last, behind what was found before; other cases are left out."""
    _until_it_ends(log, run=_ends)
    log.crash(SEGV)

    result = _known(log)["made"]
    assert result.status is Verdict.FAILED
    assert [case.seed for case in result.cases] == [0, 1, 2]
    assert result.num_blocked == 1
    assert [own.fault.what for own in result.findings] == [
        "seed 1 is odd",
        "ended the process by SIGSEGV (Segmentation fault)",
    ]
    assert result.findings[1].replay.endswith("@eager#2'")


def test_run_goes_on_with_what_is_left(log: Log) -> None:
    """The next process takes what is known, and runs the other checks."""
    _until_it_ends(log, run=_ends)
    log.crash(SEGV)
    journal = Journal(log, HONEST, CHECKS)

    results = run_checks(
        HONEST, CHECKS, effort=Effort(seeds=(0,)), observers=[journal], known=journal.known
    )

    assert [own.status for own in results.checks] == [Verdict.FAILED, Verdict.HELD]
    assert journal.has_crashed
    assert _known(log)["later"] == results.checks[1]


def test_check_that_ended_before_is_known(log: Log) -> None:
    """A later check's end takes nothing from it."""
    run_checks(HONEST, [ODD], effort=Effort(seeds=(0,)), observers=[Journal(log, HONEST, CHECKS)])
    log.write(pickle.dumps(Crash(status=SEGV, trace="", at_s=0.0)))

    assert _known(log)["made"].status is Verdict.HELD


def test_hint_that_ends_the_process_is_none(log: Log) -> None:
    """What is not claimed may end it: the check is what its cases made of it."""
    _until_it_ends(log, hints=_asked, run=LATER.run)
    log.crash(SEGV)

    result = _known(log)["made"]
    assert (result.status, list(result.hints)) == (Verdict.HELD, [])


def test_line_of_the_backend_is_found_in_the_trace(log: Log) -> None:
    """The innermost one of its own files is where native code was called."""
    own = str(HONEST.root / "paged.py")
    trace = f'  File "/lib/ctypes.py", line 5 in call\n  File "{own}", line 7 in forward\n'
    _until_it_ends(log, run=_ends)
    log.write(pickle.dumps(Crash(status=SEGV, trace=trace, at_s=0.0)))

    assert _known(log)["made"].findings[-1].fault.site == Site(own, 7)
