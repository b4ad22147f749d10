"""Documents that cannot be written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_FULL = Path("/dev/full")


def _run(shell: str, format_: str) -> tuple[int, str]:
    command = f'"$0" -m backend_caps report --format {format_} {shell}'
    done = subprocess.run(
        ["/bin/sh", "-c", command, sys.executable],
        capture_output=True,
        text=True,
        env={**os.environ, "BACKEND_CAPS_PLUGINS": "none-of-them"},
        check=False,
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize("format_", ["table", "json", "markdown"])
@pytest.mark.parametrize(
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
def test_output_that_takes_nothing_is_a_sentence(format_: str, shell: str, problem: str) -> None:
    """A document that nobody gets ends with one line and exit status 1."""
    done = _run(shell, format_)

    told = (
        f"error: nothing can be written to standard output: {problem}; an open file, pipe or "
        "terminal with room was expected. Send the output elsewhere.\n"
    )
    assert done == (1, told)


@pytest.mark.parametrize("format_", ["table", "json", "markdown"])
def test_reader_that_has_enough_is_no_fault(format_: str) -> None:
    """A pipe that is closed early, as by `head`, is said no word of."""
    _, told = _run("| true", format_)

    assert told == ""
