"""Reports to an engine's maintainers: one cause once, with a script that is run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from backend_caps.kit import (
    Case,
    CheckResult,
    Fault,
    Finding,
    Forward,
    KitError,
    Results,
    Scenario,
    issue,
)
from backend_caps.kit.check import EngineAdapter
from backend_caps.kit.checks import CHECKS
from backend_caps.kit.issue import IssueScript, issue_entries, run_script
from backend_caps.report.issue import ScriptRun
from backend_caps.simulator import Site
from tests.kit.made import HONEST

BY_CODE = {check.code: check for check in CHECKS}
LINE = Site("/somewhere/engine/attention.py", 12)


def _failed(code: str, *sites: Site | None) -> CheckResult:
    scenario = Scenario(forward=Forward.DECODE)
    case = Case(check=code, scenario=scenario)
    findings = [
        Finding(subject="Own", claims=(), case=case, fault=Fault(what=f"wrong {place}", site=site))
        for place, site in enumerate(sites)
    ]
    return CheckResult(check=BY_CODE[code], findings=findings)


def _results(*checks: CheckResult) -> Results:
    return Results(subject=HONEST, device="sim", checks=checks)


def _adapter(write: Callable[..., IssueScript]) -> EngineAdapter:
    return EngineAdapter(
        checks=(), subject=lambda _registry, _name: HONEST, script=write, prepare=lambda: None
    )


def _refuse(*_arguments: object) -> IssueScript:
    raise KitError.no_script("Own", "it has trees")


def test_findings_of_one_line_are_one_fault() -> None:
    """Two checks that fail first at one line are described once, with all lines of both."""
    other = LINE._replace(line=40)
    results = _results(
        _failed("numerics", LINE), _failed("memory", LINE, other), _failed("replay", None)
    )

    first, second = issue_entries(results, "engine", _adapter(_refuse))

    assert (first.check, first.also, first.what) == ("numerics", ["memory"], "wrong 0")
    assert first.places == ["engine/attention.py:12", "engine/attention.py:40"]
    assert (second.check, second.places) == ("replay", [])
    assert "it has trees" in str(first.script)


def test_cost_is_that_of_the_forward_of_the_case() -> None:
    """What an eager batch of it costs is counted; a case without batches has none."""
    failed = _failed("numerics", None)
    bare = replace(failed.findings[0], case=Case(check="numerics"))

    (entry,) = issue_entries(_results(failed), "engine", _adapter(_refuse))
    (without,) = issue_entries(
        _results(replace(failed, findings=[bare])), "engine", _adapter(_refuse)
    )

    assert entry.cost is not None
    assert entry.cost.forward == "decode"
    assert without.cost is None


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run scripts without an engine to prepare."""
    monkeypatch.setattr(issue, "_RUNNER", "import runpy, sys; runpy.run_path(sys.argv[2])")


@pytest.mark.usefixtures("prepared")
@pytest.mark.parametrize(
    ("text", "site", "shows"),
    [
        ("assert 1 == 2, 'differs'", None, True),
        ("raise ValueError('otherwise')", None, False),
        ("pass", None, False),
        ("raise ValueError('there')", Site("/elsewhere/script.py", 1), True),
        ("raise ValueError('elsewhere')", Site("/elsewhere/script.py", 2), False),
        ("pass", Site("/elsewhere/script.py", 1), False),
    ],
)
def test_script_shows_a_fault_that_it_fails_with(text: str, site: Site | None, shows: bool) -> None:
    """At the fault's line where it has one, and by a comparison where it has none."""
    ran = run_script("engine", IssueScript(text=text), Fault(what="wrong", site=site))

    assert ran.shows is shows
    assert ("Error" in ran.printed) is (text != "pass")


@pytest.mark.usefixtures("prepared")
def test_script_has_its_variables_and_prints_no_folder() -> None:
    """Variables are set where there is no GPU, and paths begin with the script or the engine."""
    text = "import os, json\nassert os.environ['OWN'] == '2'\njson.loads('{')"
    script = IssueScript(text=text, variables={"OWN": "2"})

    ran = run_script("json", script, Fault(what="wrong"))

    assert ran.command == "OWN=2 python script.py"
    assert 'File "script.py", line 3' in ran.printed
    assert '"json/' in ran.printed


@pytest.mark.usefixtures("prepared")
def test_script_that_does_not_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has a deadline; the report has the reason in the place of what it printed."""
    monkeypatch.setattr(issue, "_SECONDS", 0.2)
    endless = _adapter(lambda *_: IssueScript(text="while True: pass"))

    (entry,) = issue_entries(_results(_failed("numerics", None)), "engine", endless)

    assert "without an end" in str(entry.script)


_ADAPTER = """\
import os
from backend_caps.kit.check import EngineAdapter

def _absent(*_): raise AssertionError("not asked for")

ADAPTER = EngineAdapter(
    checks=(), subject=_absent, script=_absent,
    prepare=lambda: os.environ.update(STANDS_IN="yes"),
)
"""


def test_engine_is_prepared_before_its_script_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Where there is no GPU, the adapter stands in for what the engine lacks."""
    kit = tmp_path / "backend_caps_made" / "kit"
    kit.mkdir(parents=True)
    (kit / "__init__.py").write_text(_ADAPTER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    script = IssueScript(text="import os\nassert os.environ['STANDS_IN'] != 'yes', 'prepared'")

    ran = run_script("made", script, Fault(what="wrong"))

    assert ran.shows
    assert ran.printed.endswith("AssertionError: prepared")


@pytest.mark.usefixtures("prepared")
def test_entry_has_the_statement_and_the_script() -> None:
    """The check's title is named, and what became of the script."""
    made = _adapter(lambda *_: IssueScript(text="assert False, 'no'"))

    (entry,) = issue_entries(_results(_failed("numerics", None)), "engine", made)

    assert entry.title == BY_CODE["numerics"].about.title
    assert isinstance(entry.script, ScriptRun)
    assert entry.script.shows
