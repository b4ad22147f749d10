"""`--format html`: no command that prints a document refuses it, and only it loads templates."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.cli.conftest import CommandLine

_FLAGS = "--attention-backend acme_reads --speculative-algorithm EAGLE"


@pytest.mark.parametrize(
    ("line", "title"),
    [
        pytest.param("report --path @", "Installed backends", id="report"),
        pytest.param(f"resolve --path @ -- {_FLAGS}", "Plan ", id="resolve"),
        pytest.param("select --path @", "Selection", id="select"),
        pytest.param("config show", "Config", id="config"),
        pytest.param("check --list", "Check list", id="check"),
    ],
)
def test_command_prints_a_page(line: str, title: str, acme: CommandLine) -> None:
    """A document is written as one page, with its title."""
    own, separator, flags = line.partition(" -- ")

    result = acme.run(f"{own} --format html{separator}{flags}")

    assert (result.exit_code, result.stdout[:15]) == (0, "<!doctype html>")
    assert f"<title>{title}" in result.stdout


def test_explanation_stands_open_on_its_page(acme: CommandLine) -> None:
    """Of the values of a plan, those are open that were asked for."""
    result = acme.run(f"explain page_sizes --path @ --format html -- {_FLAGS}")

    (opened,) = result.stdout.split("<details open>")[1:]
    assert opened.partition("</b>")[0].strip() == "<summary><b>page_<wbr>sizes"


@pytest.mark.parametrize(("format_", "loads"), [("json", False), ("html", True)])
def test_templates_are_loaded_for_pages_alone(format_: str, loads: bool) -> None:
    """A report that is no page does not pay for them, and no report pays for torch."""
    code = (
        "import sys\nfrom backend_caps.__main__ import main\n"
        f"try: main(['report', '--format', '{format_}'])\nexcept SystemExit: pass\n"
        "print(file=sys.stderr, *(name in sys.modules for name in ('jinja2', 'torch')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd="/"
    )

    assert done.stderr.split() == [str(loads), "False"]
