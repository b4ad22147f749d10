"""The program as a process: what it imports, prints in colour, and completes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType

import pytest

from backend_caps.report.backends import ReportDocument
from tests.cli.conftest import CommandLine, process

PROGRAM = str(Path(sys.executable).with_name("backend-caps"))


def _run(
    *words: str, cwd: Path, environ: Mapping[str, str] = MappingProxyType({})
) -> subprocess.CompletedProcess[str]:
    return process(*words, cwd=cwd, env={**os.environ, **environ})


@pytest.mark.parametrize(
    "planted", ["click.py", "pydantic.py", "entrypoints.py", "rich.py", "typing.py"]
)
def test_module_in_the_working_directory_is_not_imported(tmp_path: Path, planted: str) -> None:
    """With `-m`, what lies in the working directory by chance does not run."""
    (tmp_path / planted).write_text("raise SystemExit('planted code ran')")

    finished = _run(sys.executable, "-m", "backend_caps", "report", cwd=tmp_path)

    assert (finished.returncode, finished.stderr) == (0, "")


def test_metadata_in_the_working_directory_is_skipped_and_said(acme: CommandLine) -> None:
    """With `-m`, plugins planted in the working directory are no backends, and are named."""
    words = (sys.executable, "-m", "backend_caps", "report", "--format", "json")

    report = ReportDocument.model_validate_json(_run(*words, cwd=acme.root).stdout)

    (found,) = (backend for backend in report.backends if backend.name == "acme_lean")
    assert found.status == "skipped"
    assert "--path ." in found.problems[0].remedy


LOADED = """
import sys
from backend_caps.__main__ import main
try: main(sys.argv[1:])
except SystemExit: print(*sys.modules)
"""


@pytest.mark.parametrize(
    ("command", "absent"),
    [
        ("report", "torch jinja2 yaml backend_caps.report.lock backend_caps.engines"),
        ("report --format html", "torch"),
        ("lock", "torch jinja2"),
        ("verify a.lock", "torch jinja2"),
        ("diff a.lock a.lock", "torch jinja2"),
        ("new-plugin acme_attention", "torch torch_native_caps"),
        ("--help", "torch"),
        ("generate --help", "torch"),
        ("generate --token-ids 1,x", "torch"),
        ("generate", "torch"),
    ],
)
def test_command_loads_only_what_it_needs(tmp_path: Path, command: str, absent: str) -> None:
    """Reports, locks, help and refusals start no torch, and a report nothing of other commands."""
    if "a.lock" in command:
        _run(PROGRAM, "lock", "--output", "a.lock", cwd=tmp_path)

    done = _run(sys.executable, "-c", LOADED, *command.split(), cwd=tmp_path)

    loaded = done.stdout.splitlines()[-1].split()
    assert "backend_caps.cli.main" in loaded
    assert [name for name in loaded if name.startswith(tuple(absent.split()))] == []


INTERRUPTED = """
import os, signal
from backend_caps import __main__
from backend_caps.discovery import loading

def interrupted(*, environ, early):
    print(early[1]._process.pid, flush=True)
    os.kill(os.getpid(), signal.SIGINT)

loading.begin = interrupted
__main__.main(["report"])
"""


def test_interrupt_while_plugins_are_begun_is_said_in_a_word(tmp_path: Path) -> None:
    """Ctrl-C has no traceback, and leaves no process behind."""
    finished = _run(sys.executable, "-c", INTERRUPTED, cwd=tmp_path)

    assert (finished.returncode, finished.stderr) == (1, "Aborted!\n")
    with pytest.raises(ProcessLookupError):
        os.kill(int(finished.stdout), 0)


INTERRUPTED_IN_PYDANTIC = INTERRUPTED.replace(
    "    os.kill(os.getpid(), signal.SIGINT)\n",
    """\
    try:
        os.kill(os.getpid(), signal.SIGINT)
        signal.pause()
    except KeyboardInterrupt:
        raise SchemaError("as pydantic's core says") from None
""",
).replace(
    "from backend_caps import", "from pydantic_core import SchemaError\nfrom backend_caps import"
)


def test_interrupt_that_pydantic_gives_as_its_own_error_is_said_in_a_word(tmp_path: Path) -> None:
    """An interrupt that arrives while a model is built comes out as pydantic's SchemaError."""
    finished = _run(sys.executable, "-c", INTERRUPTED_IN_PYDANTIC, cwd=tmp_path)

    assert (finished.returncode, finished.stderr) == (1, "Aborted!\n")


FAILS_UNINTERRUPTED = """
import signal
from backend_caps import __main__
from backend_caps.discovery import loading

def failing(*, environ, early):
    raise ValueError(f"no interrupt, SIGINT is {signal.getsignal(signal.SIGINT).name}")

signal.signal(signal.SIGINT, signal.SIG_IGN)
loading.begin = failing
__main__.main(["report"])
"""


def test_error_that_is_no_interrupt_keeps_its_traceback(tmp_path: Path) -> None:
    """A fault of the program is shown whole; SIGINT stays ignored where the parent ignores it."""
    finished = _run(sys.executable, "-c", FAILS_UNINTERRUPTED, cwd=tmp_path)

    assert finished.returncode == 1
    assert finished.stderr.splitlines()[-1] == "ValueError: no interrupt, SIGINT is SIG_IGN"


WATCHED = """
from backend_caps import __main__, supervisor

log = supervisor.Log()
supervisor.watched = lambda: log
try:
    __main__.main(["check", "--list"])
finally:
    print(log.is_over)
"""


def test_process_that_python_ends_says_so_to_who_waits_for_it(tmp_path: Path) -> None:
    """Who waits for a process that checks learns that nothing else has ended it."""
    finished = _run(sys.executable, "-c", WATCHED, cwd=tmp_path)

    assert (finished.returncode, finished.stdout.splitlines()[-1]) == (0, "True")


UNREADABLE_RULES = "[backend_caps.rules]\nsite = no_such:RULES\n"


def test_strict_report_refuses_rules_that_cannot_be_read(acme: CommandLine) -> None:
    """Under strict a rule that is missing is an error, unless the allow-list leaves it out."""
    acme.install("site", UNREADABLE_RULES, "")

    refused = acme.run("report --path @ --policy strict")
    left_out = acme.run("report --path @ --policy strict --plugins acme")

    assert (refused.exit_code, left_out.exit_code) == (1, 0)
    assert "missing-module" in refused.output


def test_program_and_module_print_the_same(tmp_path: Path) -> None:
    """`backend-caps` and `python -m backend_caps` are one program."""
    by_module = _run(sys.executable, "-m", "backend_caps", "report", cwd=tmp_path)

    by_name = _run(PROGRAM, "report", cwd=tmp_path)

    assert by_name.returncode == 0
    assert by_name.stdout == by_module.stdout


@pytest.mark.parametrize(
    ("environ", "is_coloured"),
    [
        pytest.param({"FORCE_COLOR": "1"}, True, id="asked for"),
        pytest.param({}, False, id="no terminal"),
        pytest.param({"NO_COLOR": "1", "FORCE_COLOR": "1"}, False, id="NO_COLOR"),
    ],
)
def test_colour_is_for_terminals(
    tmp_path: Path, environ: Mapping[str, str], *, is_coloured: bool
) -> None:
    """Colour is sent to terminals, and never under NO_COLOR."""
    finished = _run(PROGRAM, "report", cwd=tmp_path, environ={"TERM": "xterm", **environ})

    assert ("\x1b[32m" in finished.stdout) is is_coloured


def test_shell_completion_is_there(tmp_path: Path) -> None:
    """The program completes its own commands."""
    environ = {
        "_BACKEND_CAPS_COMPLETE": "bash_complete",
        "COMP_WORDS": "backend-caps re",
        "COMP_CWORD": "1",
    }

    finished = _run(PROGRAM, cwd=tmp_path, environ=environ)

    completed = {line.partition(",")[2] for line in finished.stdout.splitlines()}
    assert completed == {"relay", "report", "resolve"}


def test_version_is_the_distributions(tmp_path: Path) -> None:
    """`--version` prints the program's name and version."""
    finished = _run(PROGRAM, "--version", cwd=tmp_path)

    assert finished.stdout == f"backend-caps, version {version('backend-caps')}\n"


@pytest.mark.parametrize("command", ["report", "resolve -- --attention-backend torch_native"])
def test_output_fits_an_encoding_that_lacks_characters(tmp_path: Path, command: str) -> None:
    """Into a file of another encoding, nothing is lost and nothing raises."""
    words = [PROGRAM, *command.split()]

    finished = _run(*words, cwd=tmp_path, environ={"PYTHONIOENCODING": "ascii", "COLUMNS": "100"})

    assert (finished.returncode, finished.stderr) == (0, "")
