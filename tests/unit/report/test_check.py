"""A check in each of its forms."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from backend_caps.report.check_catalog import CheckDescription, CheckListDocument
from backend_caps.report.check_documents import (
    NOT_ASKED,
    CheckDocument,
    CostDocument,
    LinesDocument,
    PartCostDocument,
)
from backend_caps.report.check_views import check_list_view, check_view, junit, sarif
from backend_caps.report.sections import Section, markdown
from tests.unit.report.conftest import Golden, Shown
from tests.unit.report.stored import checked, read

FOUND = checked().findings[0]


PART = PartCostDocument(launches=2, host_waits=1, bytes_to_host=8, bytes_to_device=0)


def _held() -> CheckDocument:
    return read("check-held", CheckDocument)


def _finding(**said: str) -> CheckDocument:
    """Write a check with one finding, of which something else is said."""
    found = FOUND.model_copy(update=said)
    first = checked().checks[0].model_copy(update={"findings": [found]})
    return checked().model_copy(update={"checks": [first]})


def _listed() -> Iterable[Section]:
    checks = [
        CheckDescription(
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
    ("check-held", lambda: check_view(_held())),
    ("check-list", _listed),
]


@pytest.mark.parametrize(("name", "view"), _VIEWS, ids=[name for name, _ in _VIEWS])
def test_check_is_drawn_as_tables(
    name: str, view: Callable[[], Iterable[Section]], golden: Golden, shown: Shown
) -> None:
    """A check is known to the last letter where the output is no terminal."""
    golden(f"{name}.txt", shown(view()))


def test_price_stands_with_a_finding_that_is_about_it(shown: Shown) -> None:
    """A wait has what a batch of its forward costs; a wrong output has not."""
    cost = CostDocument(
        forward="decode",
        host_seq_lens="none",
        num_requests=4,
        num_context_tokens=50,
        prepare=PART,
        layer=PART,
        bytes_held=64,
    )
    scenario = "decode,float32,page-1,head-16x4:2"
    wait, wrong = (
        _finding(check=check, scenario=scenario).model_copy(update={"costs": [cost]})
        for check in ("sync-free-prepare", "numerics")
    )

    price = "an eager batch of decode (4 requests over 50 tokens, host lengths: none)"
    assert price in " ".join(shown(check_view(wait)).split())
    assert price not in " ".join(shown(check_view(wrong)).split())


def test_replay_command_is_on_one_line(shown: Shown) -> None:
    """However long, a command can be copied from its line; in markdown it is code."""
    command = FOUND.replay + " --path " + "a" * 100
    document = _finding(replay=command)

    assert f"  {command}" in shown(check_view(document)).splitlines()
    assert f"```sh\n{command}\n```" in markdown(check_view(document))


def test_stand_ins_are_named_beside_the_outcome() -> None:
    """What ran in place of a GPU's functions is in the view and in the JSON, if there was any."""
    document = _held().model_copy(update={"stand_ins": ["a store", "a merge"]})
    sentence = "with stand-ins for what needs a GPU: a store; a merge"

    assert sentence in markdown(check_view(document))
    assert "stand-ins" not in markdown(check_view(_held()))
    assert document.model_dump(by_alias=True)["stand_ins"] == ["a store", "a merge"]
    assert "stand_ins" not in json.loads(_held().model_dump_json(by_alias=True))


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
    lines = LinesDocument(num_lines=0, num_run=0, files=[])
    update = {"checks": [none], "status": "not checked", "lines": lines, "printed": []}

    document = checked().model_copy(update=update)

    (heading, *_) = markdown(check_view(document)).splitlines()
    assert heading == "## Backend 'my\\_flash' on sim: no case ran to an answer"
    assert document.is_stopped


@pytest.mark.parametrize(("name", "write"), [("check.xml", junit), ("check.sarif", sarif)])
def test_check_is_written_for_ci(
    name: str, write: Callable[[CheckDocument], str], golden: Golden
) -> None:
    """Each case, finding, hint and check that did not run is where CI systems look for it."""
    golden(name, write(checked()))


@pytest.mark.parametrize(
    ("declared_at", "uri", "region"),
    [
        pytest.param("/a b/caps.py:7", "file:///a%20b/caps.py", {"startLine": 7}, id="far"),
        pytest.param("caps.py", "caps.py", None, id="no line"),
        pytest.param(None, None, None, id="nowhere"),
    ],
)
def test_sarif_without_a_line_stands_at_the_declaration(
    declared_at: str | None, uri: str | None, region: object
) -> None:
    """What no line of the backend did, and a claim too modest, stand where it is declared."""
    document = checked().model_copy(update={"declared_at": declared_at})

    results: list[dict[str, Any]] = json.loads(sarif(document))["runs"][0]["results"]

    for result in results[-2:]:
        places = [own["physicalLocation"] for own in result["locations"]]
        assert [own["artifactLocation"]["uri"] for own in places] == ([uri] if uri else [])
        assert [own.get("region") for own in places] == ([region] if uri else [])


@pytest.mark.parametrize("document", [checked(), _held()], ids=["failed", "held"])
def test_junit_counts_what_it_holds(document: CheckDocument) -> None:
    """Each suite's numbers are those of its test cases, and the whole's are their sums."""
    root = ET.fromstring(junit(document))  # noqa: S314 - our own

    assert root.tag == "testsuites"
    for name, tag in (("tests", "testcase"), ("failures", "failure"), ("skipped", "skipped")):
        for suite in root:
            assert int(suite.get(name, "")) == len([*suite.iter(tag)])
        assert int(root.get(name, "")) == len([*root.iter(tag)])


def test_sarif_of_a_file_whose_name_is_no_utf8_is_json() -> None:
    """A finding's file is a URI of its bytes, and words that UTF-8 cannot hold are written out."""
    text = sarif(_finding(file="named\udce9.py", what="raised \udc80")).encode()

    assert (b'"named%E9.py"' in text, b"raised \\\\udc80" in text) == (True, True)


def test_junit_holds_no_control_characters() -> None:
    """What a plugin raises may hold anything, and XML may not."""
    text = junit(_finding(what="raised \x1b[31m\x00"))

    assert "raised \ufffd[31m\ufffd" in text
    ET.fromstring(text)  # noqa: S314 - our own
