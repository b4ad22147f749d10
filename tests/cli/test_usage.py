"""What the command line says to those who hold it wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cases import cases_of
from tests.cli.conftest import CASES, CommandLine


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
