from __future__ import annotations

import sys
from io import StringIO

import pytest
from rich.console import Console

from backend_caps.runtime.progress import CaptureProgress, GenerateProgress
from backend_caps.startup.graph_modes import GraphMode
from tests.runtime.made_steps import step


def _console(*, terminal: bool) -> Console:
    return Console(file=StringIO(), force_terminal=terminal, width=120, color_system=None)


def _drawn(console: Console) -> str:
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_progress_draws_what_steps_told() -> None:
    """On a terminal the line has what came of all steps, and who ran in the last; then it goes."""
    console = _console(terminal=True)

    with GenerateProgress(5, console) as progress:
        progress.observe(step(num_made=3, num_running=2, num_waiting=3))
        progress.observe(step(num_made=4, num_running=4, num_waiting=1))
        progress.count_done(2)

    last = [line for line in _drawn(console).splitlines() if "tokens" in line][-1]
    assert all(own in last for own in ("2/5", "7 tokens", "4 running", "1 queued")), last
    assert _drawn(console).endswith("\x1b[2K")


def test_progress_draws_nothing_where_there_is_no_terminal() -> None:
    """In a file or a pipe there is no trace of it."""
    console = _console(terminal=False)

    with GenerateProgress(5, console) as progress:
        progress.observe(step())
        progress.count_done(1)

    assert _drawn(console) == ""


def test_progress_is_on_standard_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Standard output is the document's."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)

    with GenerateProgress(1):
        pass

    captured = capsys.readouterr()
    assert ("generate" in captured.err, captured.out) == (True, "")


def test_wish_for_colours_makes_no_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`FORCE_COLOR`, which a CI sets, has no progress written into its log."""
    monkeypatch.setenv("FORCE_COLOR", "1")

    with GenerateProgress(1):
        pass

    assert capsys.readouterr().err == ""


def test_capture_progress_draws_what_was_captured() -> None:
    """On a terminal the last line has how many sizes are done, and the last of them."""
    console = _console(terminal=True)

    with CaptureProgress(console) as progress:
        progress.begin(3)
        progress.captured(GraphMode.FULL, 64)
        progress.captured(GraphMode.PIECEWISE, 16)

    drawn = [line for line in _drawn(console).splitlines() if "capture" in line][-1]
    assert "2/3 sizes piecewise, 16 tokens" in drawn


def test_capture_progress_without_captures_draws_nothing() -> None:
    """An engine that captures nothing shows no line."""
    console = _console(terminal=True)

    with CaptureProgress(console):
        pass

    assert "capture" not in _drawn(console)
