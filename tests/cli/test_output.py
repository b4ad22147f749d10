"""Documents that cannot be written."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from backend_caps.cli.new_plugin import project_files
from tests.cli.conftest import process

_FULL = Path("/dev/full")
FORMATS = ("table", "json", "markdown")


_CLOSED_OR_FULL = pytest.mark.parametrize(
    ("shell", "problem"),
    [
        pytest.param(">&-", "it is closed", id="closed"),
        pytest.param(
            f"> {_FULL}",
            "No space left on device",
            id="full",
            marks=pytest.mark.skipif(not _FULL.exists(), reason="the system has no full device"),
        ),
    ],
)


def _run(command: str) -> tuple[int, str]:
    words = ("/bin/sh", "-c", f'"$0" -m backend_caps {command}', sys.executable)
    done = process(*words, env={**os.environ, "BACKEND_CAPS_PLUGINS": "none-of-them"})
    return done.returncode, done.stderr


@pytest.mark.parametrize("command", [*(f"report --format {own}" for own in FORMATS), "lock"])
@_CLOSED_OR_FULL
def test_output_that_takes_nothing_is_a_sentence(command: str, shell: str, problem: str) -> None:
    """A document that nobody gets ends with one line and exit status 2."""
    assert _run(f"{command} {shell}") == (2, _told(problem))


@_CLOSED_OR_FULL
def test_plugin_is_written_where_nobody_is_told(shell: str, problem: str, tmp_path: Path) -> None:
    """The project is whole by the time that standard output takes no word of it."""
    done = _run(f"new-plugin acme_attention --into {tmp_path / 'new'} {shell}")

    files = sorted(file for file in (tmp_path / "new").rglob("*") if file.is_file())
    assert done == (2, _told(problem))
    assert len(files) == len(project_files("acme_attention"))


@pytest.mark.parametrize("format_", FORMATS)
def test_reader_that_has_enough_is_no_fault(format_: str) -> None:
    """A pipe that is closed early, as by `head`, is said no word of."""
    _, told = _run(f"report --format {format_} | true")

    assert told == ""


def _told(problem: str) -> str:
    return (
        f"error: nothing can be written to standard output: {problem}; an open file, pipe or "
        "terminal with room was expected. Send the output elsewhere.\n"
    )
