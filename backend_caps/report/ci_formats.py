"""The formats that CI systems read: JUnit's XML, and SARIF 2.1.0.

CI systems show JUnit's cases as tests; code hosts show SARIF's results beside the lines that they
name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Literal, TypeAlias
from urllib.parse import quote
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from pydantic import JsonValue

from backend_caps.report.document import legible_json

_NOT_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_COUNTED = {"failures": "failure", "skipped": "skipped", "errors": "error"}
"""The outcomes that a suite counts, by the names of the counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A line of a file, or a file."""

    file: str
    line: int | None = None

    @classmethod
    def of(cls, text: str) -> Place:
        """Divide `file:line`; a text without a line is all file."""
        file, _, line = text.rpartition(":")
        return cls(file=file, line=int(line)) if line.isdecimal() and file else cls(file=text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a case did other than pass."""

    kind: Literal["failure", "error", "skipped"]
    message: str
    type_: str | None = None
    """What kind of failure it is."""
    text: str = ""
    """All that is known, on several lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteCase:
    """A case of a JUnit suite."""

    name: str
    outcome: Outcome | None = None
    """None where it passed."""
    place: Place | None = None
    printed: str = ""
    """What a case that passed has to say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """A JUnit suite."""

    name: str
    cases: Sequence[SuiteCase]
    properties: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0


def junit_text(name: str, suites: Sequence[Suite]) -> str:
    """Write suites as a JUnit report, which CI systems show as tests."""
    written = [_suite(suite) for suite in suites]
    root = Element("testsuites", name=xml_text(name))
    for count in ("tests", *_COUNTED):
        root.set(count, str(sum(int(suite.get(count, "")) for suite in written)))
    root.set("time", f"{sum(suite.seconds for suite in suites):.3f}")
    root.extend(written)
    indent(root)
    text = tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="utf-8"?>\n{text}\n'


def _suite(suite: Suite) -> Element:
    written = Element("testsuite", name=xml_text(suite.name), time=f"{suite.seconds:.3f}")
    written.set("tests", str(len(suite.cases)))
    kinds: list[str] = [each.outcome.kind for each in suite.cases if each.outcome is not None]
    for count, kind in _COUNTED.items():
        written.set(count, str(kinds.count(kind)))
    if suite.properties:
        properties = SubElement(written, "properties")
        for key, value in suite.properties.items():
            SubElement(properties, "property", name=key, value=xml_text(value))
    for case in suite.cases:
        _add_case(written, case)
    return written


def _add_case(suite: Element, case: SuiteCase) -> None:
    test = SubElement(suite, "testcase", classname=suite.get("name", ""), name=xml_text(case.name))
    if case.place is not None:
        test.set("file", xml_text(case.place.file))
        if case.place.line is not None:
            test.set("line", str(case.place.line))
    if case.printed:
        SubElement(test, "system-out").text = xml_text(case.printed)
    if case.outcome is not None:
        outcome = SubElement(test, case.outcome.kind, message=xml_text(case.outcome.message))
        if case.outcome.type_ is not None:
            outcome.set("type", case.outcome.type_)
        outcome.text = xml_text(case.outcome.text) or None


def xml_text(text: str) -> str:
    """Replace characters that XML cannot hold."""
    return _NOT_XML.sub("\ufffd", text)


Level: TypeAlias = Literal["error", "warning", "note"]
ROOT = "%SRCROOT%"
"""SARIF's name for the folder that relative paths start from: the one the command ran in."""
_SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A result of a SARIF run."""

    rule: str
    """The id of its rule, one of the run's."""
    level: Level
    text: str
    place: Place | None
    others: Mapping[str, JsonValue] = field(default_factory=dict)
    """More of its keys."""


def sarif_text(
    run_id: str,
    version: str,
    rules: Sequence[Mapping[str, JsonValue]],
    results: Sequence[Result],
    **others: JsonValue,
) -> str:
    """Write a SARIF log of one run.

    Args:
        run_id: what the run is of; two runs of the same have the same.
        version: that of backend-caps.
        rules: each with its `id`.
        results: in the order in which they are listed.
        others: more keys of the run.
    """
    places = {str(rule["id"]): at for at, rule in enumerate(rules)}
    driver: JsonValue = {
        "name": "backend-caps",
        "version": version,
        "rules": [dict(rule) for rule in rules],
    }
    run: JsonValue = {
        "tool": {"driver": driver},
        "automationDetails": {"id": run_id},
        "columnKind": "unicodeCodePoints",
        "results": [_result(each, places) for each in results],
        **others,
    }
    log: JsonValue = {"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}
    return json.dumps(legible_json(log), indent=2, ensure_ascii=False) + "\n"


def _result(result: Result, places: Mapping[str, int]) -> JsonValue:
    return {
        "ruleId": result.rule,
        "ruleIndex": places[result.rule],
        "level": result.level,
        "message": {"text": result.text},
        "locations": [] if result.place is None else [location(result.place)],
        **result.others,
    }


def location(place: Place, base: str = ROOT) -> dict[str, JsonValue]:
    """Write a place as a location; a relative path starts from `base`."""
    path = PurePath(place.file)
    # A path need not be UTF-8: its bytes are escaped as they are.
    artifact: dict[str, JsonValue] = (
        {"uri": path.as_uri()}
        if path.is_absolute()
        else {"uri": quote(path.as_posix(), errors="surrogateescape"), "uriBaseId": base}
    )
    physical: dict[str, JsonValue] = {"artifactLocation": artifact}
    if place.line is not None:
        physical["region"] = {"startLine": place.line}
    return {"physicalLocation": physical}
