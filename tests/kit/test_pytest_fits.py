"""`pytest --backend-caps-fits`, as the author of a plugin runs it: in a project of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.report.fits_scene import BREAKS, CALL, CALL_AT, HOLDS, write_plugin, write_release

_SETTINGS = """
[tool.pytest.ini_options]
addopts = "--strict-markers --strict-config"
filterwarnings = ["error"]
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A plugin's project, beside it a release that holds and one that breaks."""
    folder = write_plugin(tmp_path / "project")
    with (folder / "pyproject.toml").open("a") as file:
        file.write(_SETTINGS)
    (folder / "test_own.py").write_text("def test_own():\n    pass\n")
    write_release(tmp_path, "0.2.0", HOLDS)
    write_release(tmp_path, "0.3.0", BREAKS)
    return folder


def _pytest(project: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the project's tests; a cache without releases and an index that is not there."""
    environ = os.environ | {"XDG_CACHE_HOME": str(project), "PIP_INDEX_URL": "http://localhost:9"}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-v", *words]
    return subprocess.run(
        command, cwd=project, env=environ, capture_output=True, text=True, check=False
    )


def _wheel(version: str) -> str:
    return f"vllm@../vllm-{version}-py3-none-any.whl"


def test_plugin_that_holds_passes(project: Path) -> None:
    """An engine is a test, beside the project's own."""
    ran = _pytest(project, "--backend-caps-fits", _wheel("0.2.0"))

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert f"backend-caps::fits::{_wheel('0.2.0')} PASSED" in " ".join(ran.stdout.split())
    assert " 2 passed" in ran.stdout


def test_plugin_that_breaks_fails_with_both_lines(project: Path) -> None:
    """The failure is what `fits` prints, and no traceback."""
    ran = _pytest(
        project, "--backend-caps-fits", _wheel("0.2.0"), "--backend-caps-fits", _wheel("0.3.0")
    )

    assert ran.returncode == 1
    assert " 1 failed, 2 passed" in ran.stdout
    lines = ran.stdout.splitlines()
    at = lines.index(f"breaks: {CALL}")
    assert lines[at - 1 : at + 3] == [
        "tiny 1.0 with vllm 0.3.0",
        f"breaks: {CALL}",
        f"  plugin  {CALL_AT}",
        "  engine  vllm/utils.py:1",
    ]
    assert "Traceback" not in ran.stdout


def test_engine_that_cannot_be_had_fails(project: Path) -> None:
    """A test that could not compare is not green."""
    ran = _pytest(project, "--backend-caps-fits", "vllm@0.9.0")

    assert ran.returncode == 1
    assert "vllm==0.9.0 cannot be downloaded from http://localhost:9" in ran.stdout
    assert "Traceback" not in ran.stdout


def test_fault_of_our_own_has_its_traceback(project: Path) -> None:
    """What is no finding is shown as pytest shows any error."""
    (project / "conftest.py").write_text(
        "import backend_caps.report.fits\n"
        "def broken(_question):\n    raise RuntimeError('a fault')\n"
        "backend_caps.report.fits.fits_of = broken\n"
    )

    ran = _pytest(project, "--backend-caps-fits", _wheel("0.2.0"))

    assert ran.returncode == 1
    assert "conftest.py:3: RuntimeError" in ran.stdout


def test_word_that_names_no_engine_is_refused(project: Path) -> None:
    """Nothing runs: the command line is wrong."""
    ran = _pytest(project, "--backend-caps-fits", "torch")

    assert ran.returncode == 4
    assert "--backend-caps-fits 'torch' names no engine; expected such as" in ran.stderr
