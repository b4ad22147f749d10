from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest

from backend_caps.kit import (
    Case,
    CheckResult,
    Effort,
    Forward,
    Scenario,
    Verdict,
    run_case,
    run_checks,
)
from backend_caps.kit.checks import CHECKS
from backend_caps.simulator import Schedule
from tests.kit.specimens import SUBJECTS

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
    """A liar is told in words that say what is wrong, with values, and at the line that did it."""
    result = _result(row)

    if "words" not in row:
        assert (result.status, list(result.hints)) == (Verdict.HELD, [])
        return
    words = re.compile(".*".join(map(re.escape, row["words"].split("…"))), re.DOTALL)
    sites = [own.fault.site for own in result.findings if words.fullmatch(own.fault.what)]
    assert sites
    assert "at" not in row or any(f"{row['at']}:" in f"{site}:" for site in sites)
