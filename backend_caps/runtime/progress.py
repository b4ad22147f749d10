"""Lines on the terminal that tell how far something has come: captures, or many prompts."""

from __future__ import annotations

from typing import Self

from rich.console import Console
from rich.progress import MofNCompleteColumn, TextColumn

from backend_caps.report.progress import bar, progress_line
from backend_caps.runtime.stats import StepStats
from backend_caps.startup.graph_modes import GraphMode


class CaptureProgress:
    """Draw sizes captured, of how many, and the last one, within a `with` block.

    It is an observer: `Engine(..., capture_observer=progress)`. Where standard error is no
    terminal, or nothing is captured, it draws nothing; the line is gone after the block.

    Args:
        console: where to draw; by default standard error.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._progress = progress_line(
            TextColumn("capture"),
            bar(),
            MofNCompleteColumn(),
            TextColumn("sizes"),
            TextColumn("{task.description}"),
            console=console,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self._progress.stop()

    def begin(self, num_sizes: int) -> None:
        """Take in how many sizes will be captured."""
        self._progress.add_task("", total=num_sizes)
        self._progress.start()

    def captured(self, mode: GraphMode, num_tokens: int) -> None:
        """Take in that a size was captured."""
        task = self._progress.task_ids[-1]
        self._progress.update(task, advance=1, description=f"{mode.value}, {num_tokens} tokens")


class GenerateProgress:
    """Draw requests done, tokens made and their rate, within a `with` block.

    It is an observer: `Engine(..., observer=progress)`. Where standard error is no terminal, it
    draws nothing; where it is, the line is gone after the block.

    Args:
        num_requests: how many there are.
        console: where to draw; by default standard error.
    """

    def __init__(self, num_requests: int, console: Console | None = None) -> None:
        self._progress = progress_line(
            TextColumn("generate"),
            bar(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[tokens]} tokens"),
            TextColumn("{task.fields[rate]:.0f}/s"),
            TextColumn("{task.fields[running]} running"),
            TextColumn("{task.fields[queued]} queued"),
            console=console,
        )
        self._task = self._progress.add_task(
            "generate",
            start=False,
            total=num_requests,
            tokens=0,
            rate=0.0,
            running=0,
            queued=num_requests,
        )
        self._num_made = 0

    def __enter__(self) -> Self:
        self._progress.start()
        self._progress.start_task(self._task)
        return self

    def __exit__(self, *_raised: object) -> None:
        self._progress.stop()

    def observe(self, stats: StepStats) -> None:
        """Take in a step whose result was processed."""
        if self._progress.disable:
            return
        self._num_made += stats.num_made
        elapsed_s = self._progress.tasks[0].elapsed or 0.0
        self._progress.update(
            self._task,
            tokens=self._num_made,
            rate=self._num_made / elapsed_s if elapsed_s > 0 else 0.0,
            running=stats.num_running,
            queued=stats.num_waiting,
        )

    def count_done(self, num_requests: int) -> None:
        """Take in that so many more requests have ended."""
        self._progress.advance(self._task, num_requests)
