"""Host lengths of command lines, beside what SGLang's own code decides."""

from __future__ import annotations

import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.upstream.host_lengths import Verdict, launch_of, trial_of, trials
from tests.upstream.launches import Case

pytestmark = [pytest.mark.slow, pytest.mark.upstream]

_CASES: list[dict[str, Any]] = tomllib.loads(
    (Path(__file__).parent / "tables" / "host_lengths.toml").read_text("utf-8")
)["case"]
_NUMBER = 8


@pytest.mark.parametrize("release", ["0.5.13", "0.5.23"])
def test_host_lengths_are_what_the_release_decides(release: str) -> None:
    """A plan copies lengths where the release does, and nowhere else."""
    found = list(trials(1, _NUMBER, release))

    counts = Counter(each.verdict for each in found)
    assert [str(each) for each in found if each.verdict.is_wrong] == []
    assert counts[Verdict.EQUAL] == _NUMBER


@pytest.mark.parametrize("known", [pytest.param(each, id=each["id"]) for each in _CASES])
def test_line_once_planned_wrongly_is_what_the_release_decides(known: dict[str, Any]) -> None:
    """Each was a difference between a plan and the release's own decision."""
    release = known["release"]
    case = Case(known["machine"], known["model"], tuple(known["line"].split()))

    trial = trial_of(release, case, launch_of(release, case))

    assert trial.verdict is Verdict.EQUAL, trial
