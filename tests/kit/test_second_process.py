"""Checks in two processes: results are those of one, also where the second one ends early."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from typing import Any

import pytest

from backend_caps.kit import Case, Check, CheckStep, Effort, Fault, Fork, Results, Rig, run_checks
from backend_caps.kit.second_process import SecondProcess, ends_with
from tests.kit.made import HONEST, odd_check

_EVEN = Effort(seeds=(0, 2))
_ODD = Effort(seeds=(0, 1))


def _checks(**changes: Any) -> list[Check]:
    return [replace(odd_check(f"made-{number}"), **changes) for number in range(6)]


def _outcomes(results: Results) -> list[tuple[str, str, str, int]]:
    return [
        (own.check.code, own.status.value, own.reason, len(own.findings)) for own in results.checks
    ]


_TAKEN = get_context("fork").Event()
"""Whether the second process has taken a check."""


def _killed(parent: int, _rig: Rig, case: Case) -> Iterator[Fault]:
    """End the second process; the first waits until that has taken a check."""
    if os.getpid() != parent:
        _TAKEN.set()
        os.kill(os.getpid(), signal.SIGKILL)
    _TAKEN.wait(60)
    if case.seed % 2:
        yield Fault(what="odd")


@pytest.mark.parametrize("effort", [_EVEN, _ODD])
def test_two_processes_find_what_one_does(effort: Effort) -> None:
    """Results come in the order of the checks, whichever process had them."""
    checks = _checks()

    alone = run_checks(HONEST, checks, effort=effort)
    both = run_checks(HONEST, checks, effort=effort, fork=Fork(report=os.getpid))

    assert _outcomes(both) == _outcomes(alone)


def test_second_process_reports() -> None:
    """What is asked of it behind its last check comes back."""
    fork = Fork(report=os.getpid)

    run_checks(HONEST, _checks(), effort=_EVEN, fork=fork)

    assert isinstance(fork.reported, int)
    assert fork.reported != os.getpid()
    assert not fork.is_lost


def test_checks_of_a_second_process_that_crashed_run_in_the_first() -> None:
    """Nothing is lost but its report."""
    checks, fork = _checks(run=partial(_killed, os.getpid())), Fork(report=os.getpid)

    results = run_checks(HONEST, checks, effort=_ODD, fork=fork)

    assert [own.status.value for own in results.checks] == ["failed"] * len(checks)
    assert (fork.is_lost, fork.reported) == (True, None)


def test_check_that_ran_beside_one_that_it_stands_behind_waits() -> None:
    """Its result means nothing where the other one failed."""
    first, *rest = _checks()
    behind = [
        replace(own, about=own.about.model_copy(update={"after": [first.code]})) for own in rest
    ]

    results = run_checks(HONEST, [first, *behind], effort=_ODD, fork=Fork(report=os.getpid))

    assert [own.reason for own in results.checks[1:]] == ["says nothing while made-0 fails"] * 5


def test_observers_see_each_check_end_once() -> None:
    """They stay in the first process, and hear of the results of both."""
    ended: list[str] = []

    def observe(step: CheckStep) -> None:
        if step.is_done:
            ended.append(step.result.check.code)

    run_checks(HONEST, _checks(), effort=_EVEN, observers=[observe], fork=Fork(report=os.getpid))

    assert sorted(ended) == [f"made-{number}" for number in range(6)]


def test_few_checks_run_in_one_process() -> None:
    """A fork would take longer than they do."""
    fork = Fork(report=os.getpid)

    run_checks(HONEST, _checks()[:3], effort=_EVEN, fork=fork)

    assert (fork.reported, fork.is_lost) == (None, False)


def test_each_piece_is_taken_once() -> None:
    """Both processes take from one queue."""
    second = SecondProcess(range(40), lambda number: f"{number}".encode(), lambda: b"done")
    here = list(second.numbers())
    there = [int(result) for _, result in second.brought()]

    assert sorted([*here, *there]) == list(range(40))
    assert second.report == b"done"


def test_process_goes_on_while_its_parent_does() -> None:
    """It ends only behind it."""
    ends_with(os.getppid())
