"""What of plugins breaks, in each of its forms."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from backend_caps.report.document import json_text
from backend_caps.report.fits_ci import fits_junit, fits_sarif
from backend_caps.report.fits_documents import FitsDocument
from backend_caps.report.fits_views import badge, fits_view, headline
from backend_caps.report.html.page import page
from tests.unit.report.conftest import Golden, Shown
from tests.unit.report.fits_scene import (
    CALLED,
    DEAD,
    HELD,
    OPEN,
    REPLACED,
    comparison,
    document,
    unreadable,
    whole,
)

_HOSTILE = '"><script>alert(1)</script>\x1b[31m\x00'
_BROKEN = comparison(CALLED, version="0.3.0")
_HOLDING = comparison(HELD, OPEN)


def test_fits_is_drawn_as_sections(golden: Golden, shown: Shown) -> None:
    """Each finding has its places, and all pairs are a table at the end."""
    golden("fits.txt", shown(fits_view(whole())))


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("fits.json", lambda found: json_text(found, indent=2)),
        ("fits.sarif", fits_sarif),
        ("fits.svg", badge),
        ("fits.xml", fits_junit),
    ],
    ids=["json", "sarif", "badge", "junit"],
)
def test_fits_is_written_for_programs(
    name: str, write: Callable[[FitsDocument], str], golden: Golden
) -> None:
    """Each finding, and what was not checked, is where programs look for it."""
    golden(name, write(whole()))


@pytest.mark.parametrize(
    ("found", "told"),
    [
        pytest.param(document(_HOLDING), ("fits vllm 0.2.0", "holds"), id="holds"),
        pytest.param(document(_BROKEN), ("fits vllm 0.3.0", "1 break"), id="breaks"),
        pytest.param(
            document(unreadable("0.4.0")), ("fits vllm 0.4.0", "cannot say"), id="unreadable"
        ),
        pytest.param(
            document(_HOLDING, _BROKEN),
            ("fits vllm 0.2.0 to 0.3.0", "1 of 2 break"),
            id="some of a range",
        ),
        pytest.param(
            document(_HOLDING, comparison(HELD, engine="sglang", version=None)),
            ("fits vllm 0.2.0, sglang sglang-None", "holds"),
            id="two engines",
        ),
    ],
)
def test_headline_names_engines_and_what_became(found: FitsDocument, told: tuple[str, str]) -> None:
    """A badge says which releases were compared, and how many breaks or pairs broke."""
    assert headline(found) == told


def test_page_is_titled_by_the_headline_and_shows_the_badge() -> None:
    """The page's title is the badge's text."""
    found = document(_BROKEN)

    text = page(found, fits_view(found))

    assert "<title>fits vllm 0.3.0: 1 break · backend-caps</title>".replace("·", "&#183;") in text
    assert badge(found).strip() in text


def test_words_of_a_plugin_are_no_markup() -> None:
    """A plugin's name and version end no element, and XML's forbidden characters are replaced."""
    found = document(comparison(CALLED, name=_HOSTILE, version=_HOSTILE))

    for text in (badge(found), fits_junit(found)):
        assert "<script>" not in text
        ET.fromstring(text)  # noqa: S314 - our own
    assert (
        "<script>"
        not in page(found, fits_view(found)).partition("<header>")[2].partition("<dialog")[0]
    )


def test_junit_counts_what_it_holds() -> None:
    """A break is a failure, what is not checked is skipped, what cannot be said is an error."""
    root = ET.fromstring(fits_junit(whole()))  # noqa: S314 - our own

    counts = {name: root.get(name) for name in ("tests", "failures", "skipped", "errors")}
    assert counts == {"tests": "8", "failures": "2", "skipped": "1", "errors": "1"}
    for name, tag in (("tests", "testcase"), ("failures", "failure"), ("errors", "error")):
        for suite in root:
            assert int(suite.get(name, "")) == len([*suite.iter(tag)])


def _results(found: FitsDocument) -> list[dict[str, Any]]:
    results: list[dict[str, Any]] = json.loads(fits_sarif(found))["runs"][0]["results"]
    return results


@pytest.mark.parametrize(
    ("contact", "rule", "level"),
    [
        pytest.param(CALLED, "call-breaks", "error", id="breaks"),
        pytest.param(REPLACED, "import-changed", "warning", id="changed"),
        pytest.param(DEAD, "override-unused", "note", id="unused"),
    ],
)
def test_sarif_has_a_rule_and_a_level_for_each_verdict(contact: Any, rule: str, level: str) -> None:
    """A rule is a kind of contact and what became of it."""
    (result,) = _results(document(comparison(contact)))

    assert (result["ruleId"], result["level"]) == (rule, level)


def test_sarif_annotates_a_line_once_for_all_releases() -> None:
    """What several releases break is one result, and names each release's own place."""
    found = document(comparison(CALLED), comparison(CALLED, version="0.3.0"))

    (result,) = _results(found)

    releases = [each["message"]["text"] for each in result["relatedLocations"]]
    assert releases == ["vllm 0.2.0", "vllm 0.3.0"]
    assert "tiny 1.0 with vllm 0.2.0; tiny 1.0 with vllm 0.3.0" in result["message"]["text"]


def test_sarif_without_a_finding_has_no_rule() -> None:
    """A plugin that holds leaves nothing to annotate; what is not checked is no finding."""
    (run,) = json.loads(fits_sarif(document(_HOLDING)))["runs"]

    assert (run["results"], run["tool"]["driver"]["rules"]) == ([], [])
