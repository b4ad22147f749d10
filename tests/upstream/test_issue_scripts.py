"""The scripts of findings in engines' own classes, in the environments that have the engines."""

from __future__ import annotations

import subprocess

import pytest

from tests.upstream import sglang_findings, vllm_findings
from tests.upstream.engine_findings import ROOT, EngineFindings

pytestmark = pytest.mark.upstream
BOTH = [
    pytest.param(own.FINDINGS, id=own.FINDINGS.engine) for own in (sglang_findings, vllm_findings)
]


@pytest.mark.installed_engine
@pytest.mark.timeout(900)
@pytest.mark.parametrize("findings", BOTH)
def test_each_script_shows_its_fault(findings: EngineFindings) -> None:
    """Each fails as its finding says, with torch and the engine alone."""
    module = f"tests.upstream.{findings.engine}_findings"
    done = subprocess.run(
        [str(findings.python), "-m", module, "--run-scripts"],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**findings.environment(), "OMP_NUM_THREADS": "1"},
    )

    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("findings", BOTH)
def test_each_finding_has_a_script(findings: EngineFindings) -> None:
    """No finding is without one, but for hints, which rest on many cases."""
    found = [own for own in findings.found_in(findings.read_kept()) if own.replay]

    assert found
    assert [own for own in found if not own.script] == []


@pytest.mark.parametrize("findings", BOTH)
def test_scripts_are_short_and_need_the_engine_alone(findings: EngineFindings) -> None:
    """At most 60 lines of at most 100 characters, and nothing of this project."""
    for file in findings.scripts_folder.glob("*.py"):
        lines = file.read_text("utf-8").splitlines()
        assert len(lines) <= 60, file.name
        assert max(map(len, lines)) <= 100, file.name
        assert "backend_caps" not in "".join(lines), file.name
