"""A check as JUnit's XML: a suite for each check, a test case for each case."""

from __future__ import annotations

import re
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from backend_caps.report.check_documents import CheckDocument, CheckedDocument, FindingDocument

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
    """Say what a case found; a test case has one failure."""
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
