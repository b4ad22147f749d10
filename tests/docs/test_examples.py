"""What the pages show is what is printed, in a terminal and in a CI workflow."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
import yaml

from backend_caps.cli.new_plugin import project_files, write_project
from docs.tools.examples import blocks_of, differences, has_examples
from docs.tools.outputs import RENEW
from tests.cli.conftest import process
from tests.docs.pages import PAGES, ROOT, name_of

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("page", [p for p in PAGES if has_examples(p)], ids=name_of)
def test_page_shows_what_is_printed(page: Path, tmp_path: Path) -> None:
    """Every command and every block of Python on a page prints what the page shows."""
    found = [str(difference) for difference in differences(page, tmp_path)]

    assert not found, f"renew it by {RENEW}, or repair what is printed:\n" + "\n".join(found)


_RAISES = "```python\n1 / 0\n```\n\n```text output\n```\n"


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        pytest.param("```console\n$ echo one\ntwo\n```\n", ["$ echo one\none\n"], id="other"),
        pytest.param("```console\n$ seq 5\n1\n…\n5\n```\n", [], id="lines left out"),
        pytest.param(_RAISES, ["builtins.ZeroDivisionError: division by zero\n"], id="an error"),
    ],
)
def test_example_that_prints_something_else_is_reported(
    text: str, printed: list[str], tmp_path: Path
) -> None:
    """A page that shows another output than is printed has a difference; `…` is any lines."""
    page = tmp_path / "page.md"
    page.write_text(text, "utf-8")

    assert [difference.printed for difference in differences(page, tmp_path)] == printed


def test_readme_is_short() -> None:
    """The README has at most 120 lines."""
    readme = next(page for page in PAGES if name_of(page) == "README.md")

    assert readme.read_text("utf-8").count("\n") <= 120


PAGE = ROOT / "docs" / "how-to" / "put-the-kit-in-your-ci.md"
NAME = "my_flash"
LESS = "--quick --only declaration-hygiene --only mirror-absent --no-lines"
"""Of the checks, for the sake of time: the rest of a command is as the page has it."""


def _workflow() -> dict[object, Any]:
    (block,) = [own for own in blocks_of(PAGE.read_text("utf-8")) if own.title]
    read: dict[object, Any] = yaml.safe_load(block.text)
    return read


def _steps() -> list[dict[str, Any]]:
    (job,) = _workflow()["jobs"].values()
    steps: list[dict[str, Any]] = job["steps"]
    return steps


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new plugin, as it is found where it is installed."""
    folder = tmp_path_factory.mktemp("ci") / NAME
    write_project(project_files(NAME), folder)
    info = folder / "my_flash-0.1.0.dist-info"
    info.mkdir()
    entry = f"[backend_caps.backends]\n{NAME} = {NAME}_caps:DECLARATION\n"
    (info / "entry_points.txt").write_text(entry)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-flash\nVersion: 0.1.0\n")
    return folder


def test_workflow_is_one_for_github() -> None:
    """It has what a workflow needs: when, where, and steps that run or use something."""
    workflow = _workflow()

    (job,) = workflow["jobs"].values()
    assert workflow[True] == ["push", "pull_request"]  # YAML 1.1 reads `on` so
    assert job["runs-on"] == "ubuntu-latest"
    assert [("run" in step) + ("uses" in step) for step in job["steps"]] == [1] * len(job["steps"])
    assert workflow["permissions"]["security-events"] == "write"  # for upload-sarif


def test_workflow_reads_what_it_writes() -> None:
    """The files that are uploaded are those that its commands name."""
    steps = _steps()
    commands = " ".join(step.get("run", "") for step in steps)

    (uploaded,) = [own["with"] for own in steps if "upload-sarif" in own.get("uses", "")]
    (kept,) = [own["with"] for own in steps if "upload-artifact" in own.get("uses", "")]
    assert f"--also {uploaded['sarif_file']}" in commands
    assert f"--junit-xml={kept['path']}" in commands


@pytest.mark.parametrize("step", [own for own in _steps() if "run" in own], ids=lambda s: s["name"])
def test_workflow_commands_can_be_read(step: dict[str, Any]) -> None:
    """The shell takes each of them."""
    read = process("/bin/bash", "-n", "-c", step["run"])

    assert (read.returncode, read.stderr) == (0, "")


@pytest.mark.parametrize("status", [0, 1])
def test_workflow_checks_the_plugin(status: int, project: Path, tmp_path: Path) -> None:
    """Its command ends as the claims do, and leaves a summary and a SARIF file to show."""
    (command,) = [own["run"] for own in _steps() if "backend-caps check" in own.get("run", "")]
    caps = project / f"{NAME}_caps.py"
    written = caps.read_text("utf-8")
    if status:
        caps.write_text(written.replace("HostSeqLens.EXACT", "HostSeqLens.NONE"), "utf-8")

    ran = _run(command.replace(f"check {NAME}", f"check {NAME} {LESS}"), project, tmp_path)
    caps.write_text(written, "utf-8")

    results = json.loads((project / "findings.sarif").read_text())["runs"][0]["results"]
    assert (ran.returncode, bool(results)) == (status, bool(status)), ran.stderr
    assert "Backend 'my\\_flash' on sim" in (tmp_path / "summary.md").read_text("utf-8")


def test_workflow_tests_the_plugin(project: Path, tmp_path: Path) -> None:
    """Its command runs the project's own tests and the checks, and leaves what became of each."""
    (command,) = [own["run"] for own in _steps() if "pytest --junit" in own.get("run", "")]

    ran = _run(f"{command} --backend-caps-only mirror-read", project, tmp_path)

    root = ET.parse(project / "tests.xml").getroot()  # noqa: S314 - our own
    names = {case.get("classname") for case in root.iter("testcase")}
    assert ran.returncode == 0, ran.stdout
    assert {"tests.test_backend", "backend-caps.my_flash.mirror-read"} <= names


def _run(command: str, project: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a step where GitHub would, in an environment in which the plugin is installed."""
    environ = {
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "PYTHONPATH": str(project),
        "OMP_NUM_THREADS": "1",
        "GITHUB_STEP_SUMMARY": str(folder / "summary.md"),
    }
    return process("/bin/bash", "-e", "-c", command, cwd=project, env=environ)
