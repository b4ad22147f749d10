from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest

from backend_caps.kit import Case, Effort, Finding, Forward, Scenario, run_case, run_checks
from backend_caps.kit.checks import CHECKS
from backend_caps.simulator import Schedule
from tests.kit.specimens import SUBJECTS

_CHECK_NAMED = {own.code: own for own in CHECKS}
_FILE = Path(__file__).parent / "data" / "findings.toml"
_ROWS = tomllib.loads(_FILE.read_text("utf-8"))["finding"]


def _found(row: Mapping[str, Any]) -> Sequence[Finding]:
    subject, check = SUBJECTS[row["liar"]], _CHECK_NAMED[row["check"]]
    if "schedule" in row:
        schedule = Schedule.parse(row["schedule"])
        case = Case(check=check.code, scenario=Scenario(forward=Forward.DECODE), schedule=schedule)
        return run_case(subject, check, case).findings
    effort = Effort(seeds=row.get("seeds", [0, 1]), num_steps=100)
    return run_checks(subject, [check], device=row.get("device", "cpu"), effort=effort).findings


@pytest.mark.parametrize("row", _ROWS, ids=itemgetter("says"))
def test_finding_tells_what_was_seen(row: Mapping[str, Any]) -> None:
    """A liar is told in words that say what is wrong, with values, and at the line that did it."""
    words = re.compile(".*".join(map(re.escape, row["words"].split("…"))), re.DOTALL)

    told = [own.fault for own in _found(row) if words.fullmatch(own.fault.what)]

    assert told
    if "at" in row:
        assert any(own.site is not None and own.site.file.endswith(row["at"]) for own in told)
