"""Progress lines on a terminal, erased when the work is done."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Timer
from typing import TextIO

from rich import progress
from rich.console import Console

PATIENCE_S = 0.5
"""Seconds before a line appears."""
_REFRESHES_A_SECOND = 5


def terminal_of(stream: TextIO | None) -> Console:
    """Make a console that draws only where a stream is a terminal.

    `FORCE_COLOR`, which CI sets, asks for colours and does not turn a file into a terminal.
    """
    return Console(file=stream, force_terminal=stream is not None and stream.isatty())


def progress_line(
    *columns: progress.ProgressColumn, console: Console | None = None, redirects: bool = True
) -> progress.Progress:
    """Make a line that is erased when it stops, and drawn only on a terminal.

    Args:
        columns: those before the elapsed time.
        console: where to draw; by default standard error.
        redirects: whether text printed meanwhile goes above it; False where that text never reaches
            the terminal.
    """
    console = terminal_of(sys.stderr) if console is None else console
    return progress.Progress(
        *columns,
        progress.TimeElapsedColumn(),
        console=console,
        refresh_per_second=_REFRESHES_A_SECOND,
        transient=True,
        redirect_stdout=redirects,
        redirect_stderr=redirects,
        disable=not console.is_terminal,
    )


def bar() -> progress.ProgressColumn:
    """Make a column that draws the share of work done."""
    return progress.BarColumn(bar_width=24)


@contextmanager
def spinning(
    doing: str, *, console: Console | None = None, patience_s: float = PATIENCE_S
) -> Iterator[None]:
    """Show a spinner on a terminal while a block runs longer than `patience_s`.

    The block must not print, except in a child process.

    Args:
        doing: the words beside the spinner, such as `reading sglang`.
        console: where to draw; by default standard error.
        patience_s: seconds before the spinner appears.
    """
    line = progress_line(
        progress.SpinnerColumn("line"), progress.TextColumn(doing), console=console, redirects=False
    )
    if line.disable:
        yield
        return
    line.add_task("", total=None)
    timer = Timer(patience_s, line.start)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()  # it may be in `start` already, which must not follow `stop`
        line.stop()
