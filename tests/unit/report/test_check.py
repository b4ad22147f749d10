"""A check in each of its forms."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from backend_caps.report.check_documents import (
    NOT_ASKED,
    CheckDocument,
    CheckListDocument,
    CheckListedDocument,
    LinesDocument,
)
from backend_caps.report.check_views import check_list_view, check_view, junit, sarif
from backend_caps.report.sections import Section, markdown
from tests.unit.report.check_scene import FOUND, checked
from tests.unit.report.conftest import Golden, Shown


def _listed() -> Iterable[Section]:
    checks = [
        CheckListedDocument(
            code=code,
            title="Outputs are right.",
            claims=claims,
            proves="That they are.",
            cannot="Anything else.",
            after=after,
        )
        for code, claims, after in (("numerics", ["dtypes"], []), ("memory", [], ["numerics"]))
    ]
    return check_list_view(CheckListDocument(schema_="backend-caps/check-list@1", checks=checks))


_VIEWS: list[tuple[str, Callable[[], Iterable[Section]]]] = [
    ("check-failed", lambda: check_view(checked())),
    ("check-held", lambda: check_view(checked(fails=False))),
    ("check-list", _listed),
]


@pytest.mark.parametrize(("name", "view"), _VIEWS, ids=[name for name, _ in _VIEWS])
def test_check_is_drawn_as_tables(
    name: str, view: Callable[[], Iterable[Section]], golden: Golden, shown: Shown
) -> None:
    """A check is known to the last letter where the output is no terminal."""
    text = shown(view())

    golden(f"{name}.txt", text)


def test_replay_command_is_on_one_line(shown: Shown) -> None:
    """However long, a command can be copied from its line; in markdown it is code."""
    command = FOUND.replay + " --path " + "a" * 100
    found = FOUND.model_copy(update={"replay": command})
    first = checked().checks[0].model_copy(update={"findings": [found]})
    document = checked().model_copy(update={"checks": [first]})

    assert f"  {command}" in shown(check_view(document)).splitlines()
    assert f"```sh\n{command}\n```" in markdown(check_view(document))


def test_part_of_the_checks_shows_part_of_the_claims() -> None:
    """Where only some checks ran, only what they are about is shown, and the rest is counted."""
    claims = checked().claims
    other = claims[1].model_copy(update={"capability": "two_batch_overlap", "reason": NOT_ASKED})
    few = checked().checks[1:2]

    of_one = checked().model_copy(update={"claims": [*claims, other]})
    of_none = of_one.model_copy(update={"checks": few})

    assert "- 2 other claims: not asked about" in markdown(check_view(of_one)).splitlines()
    assert "- 3 other claims: not asked about" in markdown(check_view(of_none)).splitlines()
    assert "| claim |" not in markdown(check_view(of_none)).partition("## Checks")[0]


def test_check_without_a_case_says_so() -> None:
    """Where nothing ran, the heading claims nothing; what could have run was stopped."""
    none = checked().checks[3].model_copy(update={"applies": True})
    update = {"checks": [none], "status": "not checked", "lines": _no_lines(), "said": []}

    document = checked().model_copy(update=update)

    (heading, *_) = markdown(check_view(document)).splitlines()
    assert heading == "## Backend 'my\\_flash' on sim: no case ran to an answer"
    assert document.is_stopped


@pytest.mark.parametrize("document", [checked(), checked(fails=False)], ids=["failed", "held"])
def test_junit_counts_what_it_holds(document: CheckDocument) -> None:
    """Each suite's numbers are those of its test cases, and the whole's are their sums."""
    root = ET.fromstring(junit(document))  # noqa: S314 - our own

    assert root.tag == "testsuites"
    for name, tag in (("tests", "testcase"), ("failures", "failure"), ("skipped", "skipped")):
        for suite in root:
            assert int(suite.get(name, "")) == len([*suite.iter(tag)])
        assert int(root.get(name, "")) == len([*root.iter(tag)])


def test_junit_failure_has_all_that_a_finding_has() -> None:
    """What, where, which claims and the command are in the failure; the place is the case's."""
    root = ET.fromstring(junit(checked()))  # noqa: S314 - our own

    test = root.find(".//testcase[failure]")
    assert test is not None
    failure = test.find("failure")
    assert failure is not None
    assert test.attrib == {
        "classname": "my_flash.mirror-absent",
        "name": "decode,float32,page-1,head-16x4:2@lazy#3",
        "file": "my_flash/backend.py",
        "line": "40",
    }
    assert failure.attrib == {"message": FOUND.what, "type": "mirror-absent"}
    assert failure.text == (
        f"{FOUND.what}\nat my_flash/backend.py:40\nclaims: host_seq_lens\nreplay: {FOUND.replay}"
    )


def test_sarif_of_a_file_whose_name_is_no_utf8_is_json() -> None:
    """A finding's file is a URI of its bytes, and words that UTF-8 cannot hold are written out."""
    found = FOUND.model_copy(update={"file": "named\udce9.py", "what": "raised \udc80"})
    first = checked().checks[0].model_copy(update={"findings": [found]})
    document = checked().model_copy(update={"checks": [first]})

    text = sarif(document).encode()

    assert (b'"named%E9.py"' in text, b"raised \\\\udc80" in text) == (True, True)


def test_junit_check_that_did_not_run_is_skipped() -> None:
    """What was not checked is no pass: it is skipped, with the reason."""
    root = ET.fromstring(junit(checked()))  # noqa: S314 - our own

    skipped = root.find(".//testcase[@name='replay']/skipped")

    assert skipped is not None
    assert skipped.get("message") == "it claims no graph"


def test_junit_holds_no_control_characters() -> None:
    """What a plugin raises may hold anything, and XML may not."""
    found = FOUND.model_copy(update={"what": "raised \x1b[31m\x00"})
    first = checked().checks[0].model_copy(update={"findings": [found]})

    text = junit(checked().model_copy(update={"checks": [first]}))

    assert "raised \ufffd[31m\ufffd" in text
    ET.fromstring(text)  # noqa: S314 - our own


def test_sarif_is_a_log_of_one_run() -> None:
    """Version, tool and rules are where SARIF 2.1.0 has them; each result names its rule."""
    log: dict[str, Any] = json.loads(sarif(checked()))

    (run,) = log["runs"]
    driver = run["tool"]["driver"]
    codes = [rule["id"] for rule in driver["rules"]]
    assert (log["version"], driver["name"]) == ("2.1.0", "backend-caps")
    assert log["$schema"].endswith("sarif-schema-2.1.0.json")
    assert codes == ["mirror-absent", "memory", "numerics", "replay"]
    assert {rule["shortDescription"]["text"] for rule in driver["rules"]} > {"The title of memory."}
    for result in run["results"]:
        assert codes[result["ruleIndex"]] == result["ruleId"]
        assert result["level"] in {"error", "note"}
        assert result["message"]["text"]


def test_sarif_finding_stands_at_its_line() -> None:
    """A relative file is one below the folder of the run; the command is a property."""
    log: dict[str, Any] = json.loads(sarif(checked()))

    first = log["runs"][0]["results"][0]
    assert first["locations"] == [
        {
            "physicalLocation": {
                "artifactLocation": {"uri": "my_flash/backend.py", "uriBaseId": "%SRCROOT%"},
                "region": {"startLine": 40},
            }
        }
    ]
    assert first["properties"] == {
        "backend": "my_flash",
        "case": FOUND.case,
        "claims": ["host_seq_lens"],
        "replay": FOUND.replay,
        "schedule": "lazy",
        "seed": 3,
    }


@pytest.mark.parametrize(
    ("declared_at", "place"),
    [
        pytest.param(
            "my_flash_caps.py:7",
            {
                "artifactLocation": {"uri": "my_flash_caps.py", "uriBaseId": "%SRCROOT%"},
                "region": {"startLine": 7},
            },
            id="near",
        ),
        pytest.param(
            "/a b/caps.py:7",
            {"artifactLocation": {"uri": "file:///a%20b/caps.py"}, "region": {"startLine": 7}},
            id="far",
        ),
        pytest.param(
            "caps.py",
            {"artifactLocation": {"uri": "caps.py", "uriBaseId": "%SRCROOT%"}},
            id="no line",
        ),
        pytest.param(None, None, id="nowhere"),
    ],
)
def test_sarif_without_a_line_stands_at_the_declaration(
    declared_at: str | None, place: object
) -> None:
    """What no line of the backend did, and a claim too modest, stand where it is declared."""
    document = checked().model_copy(update={"declared_at": declared_at})

    results = json.loads(sarif(document))["runs"][0]["results"]

    (leak, hint) = results[-2:]
    expected = [] if place is None else [{"physicalLocation": place}]
    assert (leak["locations"], hint["locations"]) == (expected, expected)
    assert (leak["level"], hint["level"]) == ("error", "note")


def _no_lines() -> LinesDocument:
    return LinesDocument(num_lines=0, num_run=0, files=[])
