"""What a person at a terminal sees while a command runs, and what stays after it."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
from pathlib import Path
from time import monotonic, sleep

import pytest

from backend_caps.cli.output import working
from backend_caps.report.progress import PATIENCE_S

CHECK = "check torch_padded --quick --only mirror-absent --no-lines"


@pytest.mark.slow
@pytest.mark.no_cover
def test_check_shows_how_far_it_is_on_a_terminal(tmp_path: Path) -> None:
    """Standard error says what loads, and which check runs; standard output is the document's."""
    document = tmp_path / "document.txt"

    status, told = _on_a_terminal(CHECK, document)

    assert (status, "check" in told, "cases" in told) == (0, True, True)
    assert document.read_text("utf-8").startswith("\nBackend 'torch_padded' on sim: nothing found")


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        """Say so."""
        return True


@pytest.mark.parametrize(("stream", "is_drawn"), [(Terminal(), True), (io.StringIO(), False)])
def test_what_takes_long_is_told_on_terminals(
    stream: io.StringIO, is_drawn: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Standard error says what goes on, where somebody looks at it."""
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")

    with working("reading an engine"):
        until = monotonic() + (60 if is_drawn else 2 * PATIENCE_S)
        while "reading an engine" not in stream.getvalue() and monotonic() < until:
            sleep(PATIENCE_S / 10)

    assert ("reading an engine" in stream.getvalue()) is is_drawn


def _on_a_terminal(line: str, document: Path) -> tuple[int, str]:
    """Run a command whose standard error is a terminal; its status, and what was drawn there."""
    ours, its = pty.openpty()
    command = [sys.executable, "-m", "backend_caps", *line.split()]
    environ = {"PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1", "TERM": "xterm"}
    with document.open("wb") as out:
        run = subprocess.Popen(command, stdout=out, stderr=its, env=environ, cwd=document.parent)
    os.close(its)
    told = b"".join(_read(ours))
    os.close(ours)
    return run.wait(), told.decode()


def _read(terminal: int) -> list[bytes]:
    """Read until nobody writes any more, which a terminal tells as an error."""
    read = []
    try:
        while part := os.read(terminal, 4096):
            read.append(part)
    except OSError:
        pass
    return read
