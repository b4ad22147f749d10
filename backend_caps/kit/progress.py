"""A line on the terminal that tells how far a run of checks has come."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import MofNCompleteColumn, TextColumn

from backend_caps.kit.check import Case, Check
from backend_caps.kit.observing import NoCheckObserver
from backend_caps.kit.results import CheckResult, Finding
from backend_caps.report.progress import bar, progress_line, terminal_of


class CheckProgress(NoCheckObserver):
    """Draw the check that runs, its cases, and what was found so far, within a `with` block.

    It is an observer: `run_checks(..., observer=progress)`. Where standard error is no terminal,
    it draws nothing; where it is, the line is gone after the block.

    Args:
        num_checks: how many there are.
        console: where to draw; by default standard error as it is now, whatever replaces it later.
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def begin(self, check: Check, num_cases: int) -> None:
        """Take in that a check begins."""
        place = f"{self._num_ended + 1}/{self._num_checks}"
        self._progress.update(
            self._task, description=check.code, total=num_cases, completed=0, place=place
        )

    def ran(self, case: Case, findings: Sequence[Finding]) -> None:  # noqa: ARG002 - an observer's
        """Take in a case that was tried, and what it found."""
        self._num_findings += len(findings)
        found = f"{self._num_findings} found" if self._num_findings else ""
        self._progress.update(self._task, advance=1, found=found)

    def blocked(self, case: Case) -> None:  # noqa: ARG002 - an observer's
        """Take in a case without a run to compare with."""
        self._progress.update(self._task, advance=1)

    def end(self, result: CheckResult) -> None:  # noqa: ARG002 - an observer's
        """Take in what became of a check."""
        self._num_ended += 1
