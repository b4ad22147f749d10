"""`backend-caps fits`: what is compared, shown and written, and the status."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from click.testing import CliRunner, Result

from backend_caps.cli.main import cli
from tests.unit.report.fits_scene import BREAKS, CALL, CALL_AT, HOLDS, write_plugin, write_release


@pytest.fixture(autouse=True)
def _project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in the plugin's project; two releases are in a folder, and nothing is downloaded."""
    monkeypatch.chdir(write_plugin(tmp_path / "project"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_release(tmp_path / "releases", "0.2.0", HOLDS)
    write_release(tmp_path / "releases", "0.3.0", BREAKS)


def _run(words: str) -> Result:
    line = f"fits {words} --offline --releases ../releases"
    return CliRunner().invoke(cli, line.split())


def test_plugin_that_holds_ends_with_0() -> None:
    """The numbers are told, and what the metadata require."""
    result = _run(". vllm@0.2.0")

    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines()[1:] == [
        "tiny 1.0 with vllm 0.2.0",
        "0 breaks, 0 changes to look at, 0 unused; 2 of 2 points of contact hold, 0 not checked",
        "its metadata require vllm>=0.2; 0.2.0 is among these",
    ]


def test_plugin_that_breaks_ends_with_1() -> None:
    """The finding has both lines."""
    result = _run(". vllm@0.3.0")

    assert result.exit_code == 1
    assert result.stdout.splitlines()[2:5] == [
        f"breaks: {CALL}",
        f"  plugin  {CALL_AT}",
        "  engine  vllm/utils.py:1",
    ]


def test_plugin_that_meets_no_engine_ends_with_2(tmp_path: Path) -> None:
    """Without a point of contact nothing was compared, so nothing holds."""
    write_plugin(tmp_path / "other", "import os\n")

    result = _run("../other vllm@0.2.0")

    assert result.exit_code == 2
    assert "0 of 0 points of contact hold" in result.stdout


@pytest.mark.parametrize(
    ("words", "told"),
    [
        pytest.param("nowhere vllm@0.2.0", "error: no plugin 'nowhere'", id="no plugin"),
        pytest.param(". vllm@0.9.0", "error: no release 'vllm==0.9.0'", id="no release"),
        pytest.param(".", "Error: No engine is named.", id="engine left out"),
        pytest.param("vllm@0.2.0", "Error: No plugin is named.", id="plugin left out"),
        pytest.param(
            ". vllm@0.2.0 --also x.txt", "Error: --also x.txt does not say", id="unknown ending"
        ),
        pytest.param(
            ". vllm@0.2.0 --also /proc/x.md", "Error: --also /proc/x.md was", id="not writable"
        ),
    ],
)
def test_question_that_has_no_answer_ends_with_2(words: str, told: str) -> None:
    """What is wrong is a sentence on standard error."""
    result = _run(words)

    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1].startswith(told)


def test_two_releases_show_what_the_upgrade_brings() -> None:
    """The heading names both."""
    result = _run(". vllm@0.2.0 vllm@0.3.0")

    assert result.exit_code == 1
    assert result.stdout.splitlines()[1] == "tiny 1.0 from vllm 0.2.0 to vllm 0.3.0"


def test_since_is_looked_for_on_request() -> None:
    """Older releases in the folders are compared too."""
    assert "since   vllm 0.3.0" not in _run(". vllm@0.3.0").stdout
    assert "since   vllm 0.3.0" in _run(". vllm@0.3.0 --since").stdout


@pytest.mark.parametrize(
    ("format_", "start"),
    [
        pytest.param("json", '{\n  "schema": "backend-caps/fits@1"', id="json"),
        pytest.param("markdown", "## tiny 1.0 with vllm 0.3.0\n", id="markdown"),
        pytest.param("html", "<!doctype html>", id="html"),
        pytest.param("junit", '<?xml version="1.0"', id="junit"),
        pytest.param("sarif", '{\n  "$schema": "https://docs.oasis-open.org/sarif', id="sarif"),
    ],
)
def test_format_is_printed_and_status_kept(format_: str, start: str) -> None:
    """Whatever is printed, the status says that something breaks."""
    result = _run(f". vllm@0.3.0 --format {format_}")

    assert (result.exit_code, result.stderr) == (1, "")
    assert result.stdout.lstrip().startswith(start)


def test_one_run_writes_every_format() -> None:
    """A CI system gets all of its files from one comparison."""
    endings = ("html", "json", "md", "sarif", "svg", "xml")

    result = _run(". vllm@0.3.0 " + " ".join(f"--also found.{each}" for each in endings))

    assert result.exit_code == 1
    texts = {each: Path(f"found.{each}").read_text("utf-8") for each in endings}
    assert json.loads(texts["json"])["pairs"][0]["status"] == "breaks"
    (finding,) = json.loads(texts["sarif"])["runs"][0]["results"]
    place = finding["locations"][0]["physicalLocation"]
    assert f"{place['artifactLocation']['uri']}:{place['region']['startLine']}" == CALL_AT
    assert ET.fromstring(texts["xml"]).get("failures") == "1"  # noqa: S314 - our own
    assert ET.fromstring(texts["svg"]).get("aria-label") == "fits vllm 0.3.0: 1 break"  # noqa: S314
    assert "<h1>fits vllm 0.3.0: 1 break</h1>" in texts["html"]
    assert f"- breaks: {CALL}" in texts["md"]
