"""The committed evidence of the shipped backends is of what is here, and a run finds the same."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from contextlib import chdir
from operator import itemgetter
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from backend_caps.capability.evidence import Evidence, Standing
from backend_caps.cli.check_run import Run, check_document
from backend_caps.discovery.evidence import read_standings
from backend_caps.discovery.registry import Registry, discover
from backend_caps.kit import (
    Case,
    CheckResult,
    Effort,
    Forward,
    Scenario,
    Verdict,
    evidence_of,
    run_case,
    run_checks,
    subject_named,
)
from backend_caps.kit.checks import CHECKS
from backend_caps.report.check_catalog import checks_named
from backend_caps.report.check_views import sarif
from backend_caps.simulator import Schedule
from tests.kit.specimens import SUBJECTS

ROOT = Path(__file__).parents[2]
RUN = ("mirror-absent", "inputs-untouched", "replay")
"""One that fails, one that holds, and one that has nothing to check."""


@pytest.fixture(scope="module")
def run() -> dict[str, Any]:
    """The one run of the log of a liar before some checks, in the folder of the project."""
    subject, effort = SUBJECTS["longest_on_host"], Effort(seeds=[0])
    with chdir(ROOT):
        results = run_checks(subject, checks_named(CHECKS, RUN), effort=effort)
        text = sarif(check_document(Run(results=results, effort=effort), CHECKS))
    runs: list[dict[str, Any]] = json.loads(text)["runs"]
    (only,) = runs
    return only


def test_sarif_results_are_of_their_rules(run: dict[str, Any]) -> None:
    """Each check has a rule, in order, and each finding is an error of the rule that it names."""
    ids = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    found = {(own["ruleId"], ids[own["ruleIndex"]], own["level"]) for own in run["results"]}

    assert ids == list(RUN)
    assert found == {("mirror-absent", "mirror-absent", "error")}


def test_sarif_results_stand_at_lines_that_are_there(run: dict[str, Any]) -> None:
    """Each result has one place: a file below the folder of the run, and a line of it."""
    for own in run["results"]:
        (place,) = (each["physicalLocation"] for each in own["locations"])

        file = ROOT / unquote(place["artifactLocation"]["uri"])
        line = file.read_text("utf-8").splitlines()[place["region"]["startLine"] - 1]
        assert "seq_lens_cpu" in line


_CHECK_NAMED = {own.code: own for own in CHECKS}
_FILE = Path(__file__).parent / "data" / "findings.toml"
_ROWS = tomllib.loads(_FILE.read_text("utf-8"))["finding"]


def _result(row: Mapping[str, Any]) -> CheckResult:
    subject, check = SUBJECTS[row["backend"]], _CHECK_NAMED[row["check"]]
    if "schedule" in row:
        schedule = Schedule.parse(row["schedule"])
        case = Case(check=check.code, scenario=Scenario(forward=Forward.DECODE), schedule=schedule)
        return run_case(subject, check, case)
    effort = Effort(seeds=row.get("seeds", [0, 1]), num_steps=100)
    return run_checks(subject, [check], device=row.get("device", "cpu"), effort=effort).checks[0]


@pytest.mark.parametrize("row", _ROWS, ids=itemgetter("says"))
def test_finding_tells_what_was_seen(row: Mapping[str, Any]) -> None:
    """A liar is reported with what is wrong, the values, and the line that did it."""
    result = _result(row)

    if "words" not in row:
        assert (result.status, list(result.hints)) == (Verdict.HELD, [])
        return
    words = re.compile(".*".join(map(re.escape, row["words"].split("…"))), re.DOTALL)
    sites = [own.fault.site for own in result.findings if words.fullmatch(own.fault.what)]
    assert sites
    assert "at" not in row or any(f"{row['at']}:" in f"{site}:" for site in sites)


_RENEW = "make evidence"
_SHIPPED = ("flex_attention", "torch_native", "torch_padded", "triton")
_LITTLE = Effort(seeds=range(1), num_steps=100)
_SLOW = (pytest.mark.soak, pytest.mark.timeout(1800))
_RERUN = (
    "torch_native",
    "torch_padded",
    pytest.param("flex_attention", marks=_SLOW),
    pytest.param("triton", marks=_SLOW),
)


@pytest.fixture(scope="module")
def registry() -> Registry:
    """What is installed."""
    return discover(environ={})


@pytest.fixture(scope="module")
def standings(registry: Registry) -> Mapping[str, Standing]:
    """The evidence that is committed, compared with what is here."""
    return read_standings(registry.entries)


def _committed(standings: Mapping[str, Standing], name: str) -> Evidence:
    standing = standings.get(name, Standing())
    assert standing.evidence is not None, f"{name} has no evidence; renew it: {_RENEW}"
    return standing.evidence


def _verdicts(evidence: Evidence) -> Mapping[str, tuple[str, str | None]]:
    checks = {check.code: (check.verdict, check.reason) for check in evidence.checks}
    claims = {claim.capability: (claim.verdict, claim.reason) for claim in evidence.claims}
    return {**checks, **claims}


@pytest.mark.parametrize("name", _SHIPPED)
def test_shipped_evidence_is_fresh(name: str, standings: Mapping[str, Standing]) -> None:
    """Neither the kit's release, torch, the source nor the declaration changed since the run."""
    _committed(standings, name)

    assert [str(each) for each in standings[name].changes] == [], f"renew it: {_RENEW}"


@pytest.mark.parametrize("name", _SHIPPED)
def test_shipped_evidence_is_of_every_check(name: str, standings: Mapping[str, Standing]) -> None:
    """A check that was added or renamed has looked at each shipped backend, and none failed."""
    evidence = _committed(standings, name)

    codes = [check.code for check in evidence.checks]

    assert codes == [check.code for check in CHECKS], f"renew it: {_RENEW}"
    assert standings[name].failed_checks == ()


@pytest.mark.slow
@pytest.mark.no_cover
@pytest.mark.parametrize("name", _RERUN)
def test_shipped_evidence_is_what_a_run_finds(
    name: str, registry: Registry, standings: Mapping[str, Standing]
) -> None:
    """A run of all checks, on one draw of each scenario, comes to the committed verdicts."""
    committed = _committed(standings, name)

    results = run_checks(subject_named(registry, name), CHECKS, effort=_LITTLE)

    found = evidence_of(results, _LITTLE, CHECKS)
    assert _verdicts(found) == _verdicts(committed), f"renew it: {_RENEW}"
