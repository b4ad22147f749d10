"""The line that says what goes on, while it does."""

from __future__ import annotations

from io import StringIO
from time import monotonic, sleep

import pytest
from rich.console import Console

from backend_caps.report.progress import spinning, terminal_of

_MOST_S = 30.0


def _console() -> tuple[Console, StringIO]:
    file = StringIO()
    return Console(file=file, force_terminal=True, width=80, color_system=None), file


def _wait_for(file: StringIO, text: str) -> None:
    end_s = monotonic() + _MOST_S
    while text not in file.getvalue() and monotonic() < end_s:
        sleep(0.01)


def test_line_says_what_takes_long_and_is_gone_after_it() -> None:
    """On a terminal it is drawn within the block, and erased at its end."""
    console, file = _console()

    with spinning("reading an engine", console=console, patience_s=0):
        _wait_for(file, "reading an engine")
        meanwhile = file.getvalue()

    assert "reading an engine" in meanwhile
    assert file.getvalue().endswith("\x1b[2K")


def test_line_is_not_drawn_where_there_is_no_terminal() -> None:
    """A log has nothing of it, however long it takes."""
    file = StringIO()

    with spinning("reading an engine", console=Console(file=file), patience_s=0):
        sleep(0.05)

    assert file.getvalue() == ""


def test_line_is_not_drawn_of_what_is_done_at_once() -> None:
    """What does not take long is not spoken of."""
    console, file = _console()

    with spinning("reading an engine", console=console, patience_s=_MOST_S):
        pass

    assert file.getvalue() == ""


def test_line_is_gone_before_an_error_is_told() -> None:
    """Whatever is raised within the block finds the terminal as it was."""
    console, file = _console()

    def read() -> None:
        with spinning("reading an engine", console=console, patience_s=0):
            _wait_for(file, "reading an engine")
            raise ValueError("unreadable")

    with pytest.raises(ValueError, match="unreadable"):
        read()
    assert file.getvalue().endswith("\x1b[2K")


@pytest.mark.parametrize("stream", [None, StringIO()], ids=["closed", "no terminal"])
def test_stream_that_is_no_terminal_is_none_by_wish(
    stream: StringIO | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`FORCE_COLOR` makes a terminal of nothing."""
    monkeypatch.setenv("FORCE_COLOR", "1")

    assert not terminal_of(stream).is_terminal
