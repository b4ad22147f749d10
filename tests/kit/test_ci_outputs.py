"""What CI systems read of a run that fails: SARIF 2.1.0 and JUnit.

No package was found that carries the standard's JSON schema, so what it asks of the parts that are
written stands here: which properties are there, and no other.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import chdir
from pathlib import Path
from typing import Literal
from urllib.parse import unquote
from xml.etree import ElementTree as ET

import pytest
from pydantic import BaseModel, ConfigDict, Field, JsonValue
from pydantic.alias_generators import to_camel

from backend_caps.cli.check_run import Run, check_document
from backend_caps.kit import Effort, run_checks
from backend_caps.kit.checks import CHECKS
from backend_caps.report.check_catalog import checks_named
from backend_caps.report.check_documents import CheckDocument
from backend_caps.report.check_views import junit, sarif
from tests.kit.specimens import SUBJECTS

ROOT = Path(__file__).parents[2]
RUN = ("mirror-absent", "inputs-untouched", "replay")
"""One that fails, one that holds, and one that has nothing to check."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, alias_generator=to_camel)


class _Message(_Part):
    text: str = Field(min_length=1)


class _Rule(_Part):
    id: str
    short_description: _Message
    full_description: _Message
    help: _Message
    properties: Mapping[str, JsonValue]


class _Driver(_Part):
    name: Literal["backend-caps"]
    version: str
    rules: list[_Rule]


class _Tool(_Part):
    driver: _Driver


class _Artifact(_Part):
    uri: str
    uri_base_id: Literal["%SRCROOT%"]


class _Region(_Part):
    start_line: int = Field(ge=1)


class _Physical(_Part):
    artifact_location: _Artifact
    region: _Region


class _Location(_Part):
    physical_location: _Physical


class _Result(_Part):
    rule_id: str
    rule_index: int = Field(ge=0)
    level: Literal["none", "note", "warning", "error"]
    message: _Message
    locations: list[_Location]
    partial_fingerprints: Mapping[str, str]
    properties: Mapping[str, JsonValue]


class _Automation(_Part):
    id: str


class _Run(_Part):
    tool: _Tool
    automation_details: _Automation
    column_kind: Literal["utf16CodeUnits", "unicodeCodePoints"]
    results: list[_Result]
    properties: Mapping[str, JsonValue]


class _Log(_Part):
    schema_: str = Field(alias="$schema")
    version: Literal["2.1.0"]
    runs: list[_Run] = Field(min_length=1, max_length=1)


@pytest.fixture(scope="module")
def failing() -> CheckDocument:
    """A liar before some checks, run in the folder of the project."""
    subject = SUBJECTS["longest_on_host"]
    effort = Effort(seeds=[0])
    with chdir(ROOT):
        results = run_checks(subject, checks_named(CHECKS, RUN), effort=effort)
        return check_document(Run(results=results, effort=effort), CHECKS)


@pytest.fixture
def run(failing: CheckDocument) -> _Run:
    """The one run of the SARIF log, whose every part is as the standard has it."""
    return _Log.model_validate_json(sarif(failing)).runs[0]


def test_sarif_has_a_rule_for_each_check(run: _Run) -> None:
    """Rules have ids of their own, in the order in which checks ran."""
    ids = [rule.id for rule in run.tool.driver.rules]

    assert ids == list(RUN)


def test_sarif_results_are_of_their_rules(run: _Run, failing: CheckDocument) -> None:
    """Each finding is an error of the rule that its index and its id name."""
    found = [(own.rule_id, RUN[own.rule_index], own.level) for own in run.results]

    assert found == [("mirror-absent", "mirror-absent", "error")] * len(failing.findings)
    assert found


def test_sarif_results_stand_at_lines_that_are_there(run: _Run) -> None:
    """Each result has one place: a file below the folder of the run, and a line of it."""
    places = [place.physical_location for own in run.results for place in own.locations]

    assert len(places) == len(run.results)
    for place in places:
        lines = (ROOT / unquote(place.artifact_location.uri)).read_text("utf-8").splitlines()
        assert "seq_lens_cpu" in lines[place.region.start_line - 1]


def test_junit_of_a_failing_run_counts_its_cases(failing: CheckDocument) -> None:
    """Tests are cases and checks without any, failures are cases with findings."""
    root = ET.fromstring(junit(failing))  # noqa: S314 - our own

    num_cases = sum(len(own.cases) for own in failing.checks)
    failed = {finding.case for finding in failing.findings}
    skipped = [own.code for own in failing.checks if own.reason is not None]
    assert skipped == ["replay"]
    assert {name: root.get(name) for name in ("tests", "failures", "skipped", "errors")} == {
        "tests": str(num_cases + len(skipped)),
        "failures": str(len(failed)),
        "skipped": str(len(skipped)),
        "errors": "0",
    }


@pytest.mark.parametrize("tag", ["failure", "skipped"])
def test_junit_test_cases_are_as_many_as_it_says(failing: CheckDocument, tag: str) -> None:
    """The elements that a reader counts are those that the numbers are of."""
    root = ET.fromstring(junit(failing))  # noqa: S314 - our own

    told = root.get({"failure": "failures"}.get(tag, tag), "")
    assert len([*root.iter(tag)]) == int(told) > 0
