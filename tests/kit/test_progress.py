from __future__ import annotations

from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from backend_caps.kit import CheckProgress, Effort, run_checks
from tests.kit.made import HONEST, ODD


def _drawn(*, terminal: bool) -> str:
    file = StringIO()
    console = Console(file=file, force_terminal=terminal, width=120, color_system=None)
    with CheckProgress(2, console) as progress:
        checks = [ODD, replace(ODD, code="later")]
        run_checks(HONEST, checks, effort=Effort(seeds=range(4)), observer=progress)
    return file.getvalue()


@pytest.mark.parametrize(
    "words",
    [
        pytest.param("check 2/2", id="which of how many"),
        pytest.param("later", id="the check that runs"),
        pytest.param("4/4 cases", id="its cases"),
        pytest.param("4 found", id="what was found so far"),
    ],
)
def test_progress_tells_how_far_it_is(words: str) -> None:
    """On a terminal the last line has the check, its cases and the findings of all."""
    (*_, last) = [line for line in _drawn(terminal=True).splitlines() if "check" in line]

    assert words in last


def test_progress_is_gone_after_its_block() -> None:
    """What follows on the terminal starts where the line was: it is erased."""
    assert _drawn(terminal=True).endswith("\x1b[2K")


def test_progress_draws_nothing_where_there_is_no_terminal() -> None:
    """In a file or a pipe there is no trace of it."""
    assert _drawn(terminal=False) == ""


def test_progress_draws_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    """Unless a console is given; standard output holds the document alone."""
    with CheckProgress(1) as progress:
        run_checks(HONEST, [ODD], effort=Effort(seeds=(0,)), observer=progress)

    assert capsys.readouterr().out == ""
