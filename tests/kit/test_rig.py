from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from threading import Thread

import pytest
import torch

from backend_caps.kit import Case, Effort, Fault, Hint, Rig, Verdict, run_checks, single_threaded
from backend_caps.kit.rig import OverdueError, ends_within
from tests.kit.made import HONEST, ODD, odd_check

SHORT_S, LONG_S = 0.2, 60.0


def _loops() -> None:
    while True:
        with suppress(Exception):
            int("no number")


def _swallows_once() -> None:
    try:
        time.sleep(LONG_S)
    except:  # noqa: E722 - as code of a backend may
        time.sleep(LONG_S)


@pytest.mark.parametrize(
    "endless",
    [
        pytest.param(_loops, id="loop that catches exceptions"),
        pytest.param(lambda: time.sleep(LONG_S), id="sleep"),
        pytest.param(_swallows_once, id="bare except"),
    ],
)
def test_deadline_interrupts_what_python_runs(endless: Callable[[], None]) -> None:
    """Whether it loops or waits, the block ends soon after its time."""
    started = time.monotonic()

    with pytest.raises(OverdueError), ends_within(SHORT_S):
        endless()

    assert time.monotonic() - started < LONG_S / 2


def test_deadline_leaves_another_timer_as_it_was() -> None:
    """A timer of a test runner goes on, and its handler is in its place again."""
    before = signal.getitimer(signal.ITIMER_REAL), signal.getsignal(signal.SIGALRM)
    signal.setitimer(signal.ITIMER_REAL, LONG_S)
    try:
        with ends_within(SHORT_S):
            pass
        after = signal.getitimer(signal.ITIMER_REAL), signal.getsignal(signal.SIGALRM)
    finally:
        signal.setitimer(signal.ITIMER_REAL, *before[0])

    assert (LONG_S / 2 < after[0][0] <= LONG_S, after[1]) == (True, before[1])


def test_deadline_beyond_another_timer_is_none_of_its_own() -> None:
    """Where a test's own time ends before, that ends it."""
    before = signal.getitimer(signal.ITIMER_REAL)
    signal.setitimer(signal.ITIMER_REAL, LONG_S)
    handler = signal.getsignal(signal.SIGALRM)
    try:
        with ends_within(2 * LONG_S):
            within = signal.getsignal(signal.SIGALRM)
    finally:
        signal.setitimer(signal.ITIMER_REAL, *before)

    assert within is handler


def test_deadline_in_another_thread_is_none() -> None:
    """Python gives signals to the main thread alone: elsewhere a block just runs."""
    ran: list[bool] = []

    def run() -> None:
        with ends_within(SHORT_S):
            time.sleep(2 * SHORT_S)
            ran.append(True)

    thread = Thread(target=run)
    thread.start()
    thread.join()

    assert ran == [True]


def _endless(rig: Rig, case: Case) -> Iterator[Fault]:
    yield from ODD.run(rig, case)
    if case.seed >= 2:
        _loops()


def test_case_that_does_not_end_is_a_finding() -> None:
    """It has what it found before, the other cases run, and the next check too."""
    checks = [replace(ODD, run=_endless), odd_check("later")]

    results = run_checks(HONEST, checks, effort=Effort(seeds=(2, 1)), deadline_s=SHORT_S)

    found = [own.fault.what for own in results.checks[0].findings]
    assert found == ["did not end within 0.2 s", "seed 1 is odd"]
    assert [own.status for own in results.checks] == [Verdict.FAILED] * 2


def test_case_of_many_steps_has_longer() -> None:
    """A case that looks for growth over twice as many steps may take twice as long."""
    case = Case(check="made", seed=2, num_steps=200)
    check = replace(ODD, run=_endless, cases=lambda _subject, _effort: [case])

    results = run_checks(HONEST, [check], deadline_s=SHORT_S)

    assert [own.fault.what for own in results.findings] == ["did not end within 0.4 s"]


def test_check_ends_after_two_cases_that_do_not() -> None:
    """Each takes its whole deadline, and a third one would say no more."""
    checks = [replace(ODD, run=_endless)]

    results = run_checks(HONEST, checks, effort=Effort(seeds=(2, 3, 4, 5)), deadline_s=SHORT_S)

    assert [case.seed for case in results.checks[0].cases] == [2, 3]


def _endless_hints(_subject: object, _cases: object, _rig: object) -> Iterator[Hint]:
    _loops()
    yield Hint(claim="", what="")


def test_hints_that_do_not_end_are_none() -> None:
    """What may be claimed beyond what is costs no run its end."""
    checks = [replace(ODD, hints=_endless_hints)]

    results = run_checks(HONEST, checks, effort=Effort(seeds=(2,)), deadline_s=SHORT_S)

    assert (results.checks[0].status, results.checks[0].hints) == (Verdict.HELD, ())


def test_one_thread_computes_within_the_block() -> None:
    """Behind it as many compute as before."""
    before = torch.get_num_threads()

    torch.set_num_threads(2)
    with single_threaded():
        within = torch.get_num_threads()
    behind = torch.get_num_threads()

    torch.set_num_threads(before)
    assert (within, behind) == (1, 2)
