"""Wrong usage, output that cannot be written, and progress on a terminal."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
from pathlib import Path
from time import monotonic, sleep

import click
import pytest
from click.testing import CliRunner

from backend_caps.cli.invocation import Invocation
from backend_caps.cli.main import Commands
from backend_caps.cli.new_plugin import project_files
from backend_caps.cli.output import working
from backend_caps.report.progress import PATIENCE_S
from tests.cases import cases_of
from tests.cli.conftest import CASES, CommandLine, process


@pytest.mark.parametrize(("line", "answer"), cases_of(CASES / "usage.txt"))
def test_error_is_said_and_counted(acme: CommandLine, line: str, answer: str) -> None:
    """Each mistake gets its sentence on standard error, and its exit status."""
    assert acme.refusal(line) == answer


def test_unknown_command_lists_those_there_are(acme: CommandLine) -> None:
    """A name that is near to none is answered with all of them."""
    result = acme.run("frobnicate")

    told = result.stderr.splitlines()[-1]
    assert result.exit_code == 2
    assert told.startswith("Error: No such command 'frobnicate'. There are: ")
    assert "generate, lock, new-plugin, relay, report" in told


def test_every_fault_is_said(acme: CommandLine) -> None:
    """Several faults of one input are all said, each on a line."""
    result = acme.run("resolve --path @ -- --page-size many --attention-backend")

    assert result.exit_code == 2
    assert result.stderr.splitlines() == [
        "error: --attention-backend has no value; expected a value. Add it after the flag.",
        "error: --page-size is 'many'; expected a valid integer. Correct the value.",
    ]


@pytest.mark.parametrize(
    ("option", "named"),
    [("", "--verbose names them"), ("--verbose", "--mm-attention-backend, --ep-size")],
)
def test_flags_that_do_not_matter_are_counted(acme: CommandLine, option: str, named: str) -> None:
    """A whole command line may be pasted; what does not matter is counted, or named on request."""
    flags = "--attention-backend acme_lean --mm-attention-backend fa3 --ep-size 2"

    result = acme.run(f"resolve --path @ {option} -- {flags}")

    told = f"server flags that do not matter here: 2 ({named})\n"
    assert (result.exit_code, result.stderr) == (0, told)


def test_flags_come_from_everywhere(
    acme: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command line goes before the file, and the file before the environment."""
    file = tmp_path / "flags.yaml"
    file.write_text("attention-backend: acme_lean\npage-size: 16\n")
    monkeypatch.setenv("BACKEND_CAPS_FLAG_ATTENTION_BACKEND", "acme_reads")
    monkeypatch.setenv("BACKEND_CAPS_FLAG_PAGE_SIZE", "32")
    line = f"explain page_sizes --path @ --flags-file {file}"

    from_file = acme.run(line)
    from_line = acme.run(f"{line} -- --attention-backend acme_reads")

    assert "backend acme_lean" in from_file.stdout
    assert "backend acme_reads" in from_line.stdout
    assert "acme_lean" not in from_line.stdout


@pytest.mark.parametrize("command", ["report", "resolve", "explain", "relay"])
def test_help_shows_where_server_flags_go(acme: CommandLine, command: str) -> None:
    """Each command's usage line shows the place of the server's flags."""
    result = acme.run(f"{command} --help")

    assert result.exit_code == 0
    assert result.stdout.splitlines()[0].endswith("[-- SERVER FLAGS...]")


def test_fault_of_ours_is_not_dressed_up() -> None:
    """A group that holds anything but a user's fault goes on as it came."""

    @click.command()
    def fail() -> None:
        raise ExceptionGroup("several", [ValueError("ours")])

    group = Commands("group", commands=[fail])

    with pytest.raises(ExceptionGroup, match="several"):
        CliRunner().invoke(group, ["fail"], obj=Invocation(), catch_exceptions=False)


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
def test_plugin_is_written_where_output_is_closed(shell: str, problem: str, tmp_path: Path) -> None:
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
def test_what_takes_long_is_reported_on_terminals(
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
