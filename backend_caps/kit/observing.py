"""Who wants to know how far a run of checks has come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from backend_caps.kit.check import Case, Check
from backend_caps.kit.results import CheckResult, Finding


class CheckObserver(Protocol):
    """Who wants to know how far it has come."""

    def begin(self, check: Check, num_cases: int) -> None:
        """Take in that a check begins."""

    def tries(self, case: Case) -> None:
        """Take in that a case runs next."""

    def ran(self, case: Case, findings: Sequence[Finding]) -> None:
        """Take in a case that ran, and what it found."""

    def blocked(self, case: Case) -> None:
        """Take in a case without an answer: the run to compare with failed."""

    def asks(self, result: CheckResult) -> None:
        """Take in that a check's cases are over, and its hints are asked for."""

    def end(self, result: CheckResult) -> None:
        """Take in what became of a check."""


class NoCheckObserver:
    """Nobody wants to know; who wants to know of some of it begins here."""

    def begin(self, check: Check, num_cases: int) -> None:
        """Do nothing."""

    def tries(self, case: Case) -> None:
        """Do nothing."""

    def ran(self, case: Case, findings: Sequence[Finding]) -> None:
        """Do nothing."""

    def blocked(self, case: Case) -> None:
        """Do nothing."""

    def asks(self, result: CheckResult) -> None:
        """Do nothing."""

    def end(self, result: CheckResult) -> None:
        """Do nothing."""


class CheckObservers:
    """Tell several of everything, in their order."""

    def __init__(self, *observers: CheckObserver) -> None:
        self._observers = observers

    def begin(self, check: Check, num_cases: int) -> None:
        """Tell that a check begins."""
        for own in self._observers:
            own.begin(check, num_cases)

    def tries(self, case: Case) -> None:
        """Tell that a case runs next."""
        for own in self._observers:
            own.tries(case)

    def ran(self, case: Case, findings: Sequence[Finding]) -> None:
        """Tell of a case that ran."""
        for own in self._observers:
            own.ran(case, findings)

    def blocked(self, case: Case) -> None:
        """Tell of a case without an answer."""
        for own in self._observers:
            own.blocked(case)

    def asks(self, result: CheckResult) -> None:
        """Tell that hints are asked for."""
        for own in self._observers:
            own.asks(result)

    def end(self, result: CheckResult) -> None:
        """Tell what became of a check."""
        for own in self._observers:
            own.end(result)
