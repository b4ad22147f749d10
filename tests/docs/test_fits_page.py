"""The workflows on the page on `fits`: what GitHub runs, and what it leaves."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
import yaml

from backend_caps.compatibility.releases import cache_folder
from docs.tools.examples import blocks_of
from tests.cli.conftest import process
from tests.docs.pages import ROOT
from tests.unit.report.fits_scene import BREAKS, HOLDS, write_plugin, write_release

pytestmark = pytest.mark.slow
_PAGE = ROOT / "docs" / "how-to" / "see-whether-a-plugin-survives-a-release.md"


def _job(file: str) -> dict[str, Any]:
    """Read the one job of a workflow."""
    found = {own.title: own.text for own in blocks_of(_PAGE.read_text("utf-8")) if own.title}
    (job,) = yaml.safe_load(found[f"my_flash/.github/workflows/{file}"])["jobs"].values()
    assert isinstance(job, dict)
    return job


def _uses(job: dict[str, Any], action: str) -> dict[str, Any]:
    """Return what one of its steps gives to an action."""
    (step,) = [own for own in job["steps"] if action in own.get("uses", "")]
    given: dict[str, Any] = step["with"]
    return given


def _run(file: str, folder: Path, utils: str) -> tuple[int, Path]:
    """Run the comparison where GitHub would, over two releases that are there already."""
    project = write_plugin(folder / "project")
    for version, text in (("0.30.0", HOLDS), ("0.33.0", utils)):
        write_release(cache_folder({"XDG_CACHE_HOME": str(folder)}), version, text)
    (command,) = [own["run"] for own in _job(file)["steps"] if " fits " in own.get("run", "")]
    environ = {
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "PYTHONPATH": str(ROOT),
        "XDG_CACHE_HOME": str(folder),
        "GITHUB_STEP_SUMMARY": str(folder / "summary.md"),
    }
    offline = command.replace(" fits . ", " fits . --offline ")
    ran = process("/bin/bash", "-e", "-c", offline, cwd=project, env=environ)
    assert "tiny 1.0 with vllm 0.33.0" in (folder / "summary.md").read_text("utf-8"), ran.stderr
    return ran.returncode, project


@pytest.mark.parametrize(("utils", "status"), [(HOLDS, 0), (BREAKS, 1)], ids=["holds", "breaks"])
def test_newest_release_leaves_findings_and_a_page(utils: str, status: int, tmp_path: Path) -> None:
    """The job ends as the comparison does; what is uploaded is what its command writes."""
    job = _job("fits-newest.yml")

    returned, project = _run("fits-newest.yml", tmp_path, utils)

    findings = project / _uses(job, "upload-sarif")["sarif_file"]
    (run,) = json.loads(findings.read_text("utf-8"))["runs"]
    pages = project / _uses(job, "upload-pages-artifact")["path"]
    assert (returned, len(run["results"])) == (status, status)
    assert {each.name for each in pages.iterdir()} == {"index.html", "fits.svg"}


@pytest.mark.parametrize(("utils", "status"), [(HOLDS, 0), (BREAKS, 1)], ids=["holds", "breaks"])
def test_range_leaves_a_suite_for_each_release(utils: str, status: int, tmp_path: Path) -> None:
    """The job ends as the worst release does."""
    job = _job("fits-range.yml")

    returned, project = _run("fits-range.yml", tmp_path, utils)

    root = ET.parse(project / _uses(job, "upload-artifact")["path"]).getroot()  # noqa: S314
    assert (returned, root.get("failures")) == (status, str(status))
    assert [own.get("name") for own in root] == [
        "tiny 1.0 with vllm 0.30.0",
        "tiny 1.0 with vllm 0.33.0",
    ]


@pytest.mark.parametrize("file", ["fits-newest.yml", "fits-range.yml"])
def test_workflow_can_be_read(file: str) -> None:
    """Each step runs or uses something, and the shell takes each command."""
    steps = _job(file)["steps"]

    assert [("run" in own) + ("uses" in own) for own in steps] == [1] * len(steps)
    for command in (own["run"] for own in steps if "run" in own):
        read = process("/bin/bash", "-n", "-c", command)
        assert (read.returncode, read.stderr) == (0, "")
