"""JUnit's XML and SARIF, beyond what the documents that are written so have in them."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest

from backend_caps.report.ci_formats import Place, Suite, SuiteCase, junit_text, location


@pytest.mark.parametrize(
    ("text", "place"),
    [
        pytest.param("a/b.py:7", Place(file="a/b.py", line=7), id="line"),
        pytest.param("a/b.py", Place(file="a/b.py"), id="no line"),
        pytest.param(":7", Place(file=":7"), id="no file"),
        pytest.param("a:b", Place(file="a:b"), id="no number"),
    ],
)
def test_place_is_divided_at_its_line(text: str, place: Place) -> None:
    """What has no line after its last colon is all file."""
    assert Place.of(text) == place


def test_junit_case_without_a_line_has_its_file() -> None:
    """A place may be a file alone."""
    case = SuiteCase(name="one", place=Place(file="a.py"))

    (test,) = ET.fromstring(junit_text("all", [Suite(name="suite", cases=[case])]))[0]  # noqa: S314

    assert test.attrib == {"classname": "suite", "name": "one", "file": "a.py"}


def test_sarif_location_is_relative_to_its_base() -> None:
    """A relative path starts from the folder that is named; an absolute one names none."""
    relative = location(Place(file="a b.py", line=3), "ENGINE")
    absolute = location(Place(file="/a.py"))

    assert relative == {
        "physicalLocation": {
            "artifactLocation": {"uri": "a%20b.py", "uriBaseId": "ENGINE"},
            "region": {"startLine": 3},
        }
    }
    assert absolute == {"physicalLocation": {"artifactLocation": {"uri": "file:///a.py"}}}
