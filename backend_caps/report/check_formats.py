"""A check in the formats of CI systems: JUnit's XML, and SARIF 2.1.0."""

from __future__ import annotations

import json
import re
from pathlib import PurePath
from urllib.parse import quote
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from pydantic import JsonValue

from backend_caps.report.check_documents import (
    CheckDocument,
    CheckedDocument,
    FindingDocument,
    HintDocument,
)
from backend_caps.report.document import legible_json

_NOT_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(checked: CheckDocument) -> str:
    """Write a check as a JUnit report, which CI systems show as tests."""
    suites = [_suite(own, checked) for own in checked.checks]
    root = Element("testsuites", name=f"backend-caps check {checked.backend}")
    for name in ("tests", "failures", "skipped"):
        root.set(name, str(sum(int(suite.get(name, "0")) for suite in suites)))
    root.set("errors", "0")
    root.set("time", f"{sum(own.seconds for own in checked.checks):.3f}")
    root.extend(suites)
    indent(root)
    text = tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="utf-8"?>\n{text}\n'


def _suite(own: CheckedDocument, checked: CheckDocument) -> Element:
    """Write one check; one that ran no case is skipped, with its reason."""
    name = f"{checked.backend}.{own.code}"
    suite = Element("testsuite", name=name, errors="0", time=f"{own.seconds:.3f}")
    properties = SubElement(suite, "properties")
    for key, value in (
        ("device", checked.device),
        ("claims", ", ".join(own.claims)),
        ("proves", own.proves),
        ("cannot", own.cannot),
    ):
        SubElement(properties, "property", name=key, value=_text(value))
    failed: dict[str, list[FindingDocument]] = {}
    for finding in own.findings:
        failed.setdefault(finding.case, []).append(finding)
    for case in own.cases:
        test = SubElement(suite, "testcase", classname=name, name=case.partition("/")[2])
        _fail(test, failed.get(case, []))
    if own.reason is not None:
        skipped = SubElement(suite, "testcase", classname=name, name=own.code)
        SubElement(skipped, "skipped", message=_text(own.reason))
    suite.set("tests", str(len(own.cases) + (own.reason is not None)))
    suite.set("failures", str(len(failed)))
    suite.set("skipped", str(int(own.reason is not None)))
    return suite


def _fail(test: Element, findings: list[FindingDocument]) -> None:
    """Add the failure of a case; JUnit has one a test case."""
    if not findings:
        return
    first = findings[0]
    if first.file is not None:
        test.set("file", first.file)
        test.set("line", str(first.line))
    failure = SubElement(test, "failure", message=_text(first.what), type=first.check)
    failure.text = _text("\n".join(line for each in findings for line in _told(each)))


def _told(finding: FindingDocument) -> list[str]:
    place = [] if finding.file is None else [f"at {finding.file}:{finding.line}"]
    claims = ", ".join(finding.claims) or "what every backend owes the engine"
    return [finding.what, *place, f"claims: {claims}", f"replay: {finding.replay}"]


def _text(text: str) -> str:
    """Leave out what XML cannot hold."""
    return _NOT_XML.sub("\ufffd", text)


_SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)
_ROOT = "%SRCROOT%"
"""What relative files are relative to: the folder that the check ran in."""


def sarif(checked: CheckDocument) -> str:
    """Write a check as a SARIF log of one run: each finding is an error, each hint a note."""
    codes = [own.code for own in checked.checks]
    found = [_sarif_finding(each, codes.index(each.check), checked) for each in checked.findings]
    notes = [_hint(each, codes.index(each.check), checked) for each in checked.hints]
    driver: JsonValue = {
        "name": "backend-caps",
        "version": checked.kit_version,
        "rules": [_rule(own) for own in checked.checks],
    }
    run: JsonValue = {
        "tool": {"driver": driver},
        "automationDetails": {"id": f"backend-caps/{checked.backend}/{checked.device}"},
        "columnKind": "unicodeCodePoints",
        "results": [*found, *notes],
        "properties": {"backend": checked.backend, "device": checked.device},
    }
    log: JsonValue = {"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}
    return json.dumps(legible_json(log), indent=2, ensure_ascii=False) + "\n"


def _rule(own: CheckedDocument) -> JsonValue:
    return {
        "id": own.code,
        "shortDescription": {"text": own.title},
        "fullDescription": {"text": own.proves},
        "help": {"text": f"Proves: {own.proves} Cannot find: {own.cannot}"},
        "properties": {"claims": [*own.claims]},
    }


def _sarif_finding(finding: FindingDocument, at: int, checked: CheckDocument) -> JsonValue:
    claims = ", ".join(finding.claims) or "what every backend owes the engine"
    declared = _place(checked.declared_at)
    place = declared if finding.file is None else (finding.file, finding.line)
    return {
        "ruleId": finding.check,
        "ruleIndex": at,
        "level": "error",
        "message": {"text": f"{claims}: {finding.what}. Replay: {finding.replay}"},
        "locations": _locations(place),
        "partialFingerprints": {"case/v1": f"{checked.backend}/{finding.case}"},
        "properties": {
            "backend": checked.backend,
            "case": finding.case,
            "claims": [*finding.claims],
            "replay": finding.replay,
            "schedule": finding.schedule,
            "seed": finding.seed,
        },
    }


def _hint(hint: HintDocument, at: int, checked: CheckDocument) -> JsonValue:
    return {
        "ruleId": hint.check,
        "ruleIndex": at,
        "level": "note",
        "message": {"text": f"{hint.claim} may be too modest: {hint.what}"},
        "locations": _locations(_place(checked.declared_at)),
        "properties": {"backend": checked.backend, "claims": [hint.claim]},
    }


def _place(declared_at: str | None) -> tuple[str, int | None] | None:
    """Divide `file:line`."""
    if declared_at is None:
        return None
    file, _, line = declared_at.rpartition(":")
    return (file, int(line)) if line.isdecimal() and file else (declared_at, None)


def _locations(place: tuple[str, int | None] | None) -> list[JsonValue]:
    if place is None:
        return []
    path, line = PurePath(place[0]), place[1]
    artifact: dict[str, JsonValue] = (
        {"uri": path.as_uri()}
        if path.is_absolute()
        else {"uri": quote(path.as_posix(), errors="surrogateescape"), "uriBaseId": _ROOT}
    )
    physical: dict[str, JsonValue] = {"artifactLocation": artifact}
    if line is not None:
        physical["region"] = {"startLine": line}
    return [{"physicalLocation": physical}]
