"""A line on the terminal that is there while something is done, and gone when it is."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Timer
from typing import TextIO

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

PATIENCE_S = 0.5
"""Seconds before a line names what takes long."""
_REFRESHES_A_SECOND = 5


def terminal_of(stream: TextIO | None) -> Console:
    """Make a console that draws where a stream is a terminal, and only there.

    A wish for colours, such as `FORCE_COLOR` in CI, makes no terminal of a file.
    """
    return Console(file=stream, force_terminal=stream is not None and stream.isatty())


def progress_line(
    *columns: ProgressColumn, console: Console | None = None, redirects: bool = True
) -> Progress:
    """Make a line that is gone when it stops, and is not drawn where there is no terminal.

    Args:
        columns: what it has before the time that went by.
        console: where to draw; by default standard error.
        redirects: whether what is printed meanwhile goes above it; not where it is kept from the
            terminal anyway.
    """
    console = terminal_of(sys.stderr) if console is None else console
    return Progress(
        *columns,
        TimeElapsedColumn(),
        console=console,
        refresh_per_second=_REFRESHES_A_SECOND,
        transient=True,
        redirect_stdout=redirects,
        redirect_stderr=redirects,
        disable=not console.is_terminal,
    )


def bar() -> ProgressColumn:
    """Make a column that draws how much is done."""
    return BarColumn(bar_width=24)


@contextmanager
def spinning(
    doing: str, *, console: Console | None = None, patience_s: float = PATIENCE_S
) -> Iterator[None]:
    """Show a spinner while the block takes long, where there is a terminal.

    Nothing may be printed meanwhile, but for what is done in a process of its own.

    Args:
        doing: what it is, as `reading sglang`.
        console: where to draw; by default standard error.
        patience_s: how long nothing is said.
    """
    line = progress_line(SpinnerColumn("line"), TextColumn(doing), console=console, redirects=False)
    if line.disable:
        yield
        return
    line.add_task("", total=None)
    later = Timer(patience_s, line.start)
    later.start()
    try:
        yield
    finally:
        later.cancel()
        later.join()
        line.stop()
