"""A check in every format: as sections, as JUnit's XML, and as SARIF 2.1.0.

JUnit has a suite for each check and a test case for each case; code hosts show SARIF's results
beside the lines that they name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import PurePath
from urllib.parse import quote
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from pydantic import JsonValue

from backend_caps.report.check_catalog import CheckListDocument
from backend_caps.report.check_documents import (
    NOT_ASKED,
    CheckDocument,
    CheckedDocument,
    ClaimDocument,
    ExercisedDocument,
    FindingDocument,
    HintDocument,
    LinesDocument,
)
from backend_caps.report.document import legible_json
from backend_caps.report.sections import Columns, Heading, Lines, Section, table_of, titled_table
from backend_caps.report.words import counted, grouped, words_of

_OWED = "owed to the engine"
"""What a check is about that is about no claim."""
_DUTY = "what every backend owes the engine"
"""The same, in a sentence."""
_STRETCHES = 12
"""Ranges of lines that are shown of one file; the document has all."""
_SAID = 20
"""Printed lines that are shown."""


def check_view(checked: CheckDocument) -> Iterator[Section]:
    """Show what became of a backend's claims."""
    yield Heading(_title(checked))
    yield from _about(checked)
    yield from _claims(checked)
    yield Heading("Checks")
    yield table_of(checked.checks, _CHECKS, "names")
    yield from _reasons(checked)
    yield from _findings(checked)
    yield from _hints(checked)
    yield Heading("Exercised")
    yield table_of(checked.exercised, _EXERCISED)
    yield from _lines(checked.lines)
    yield from _said(checked)


def _title(checked: CheckDocument) -> str:
    num_cases = sum(len(own.cases) for own in checked.checks)
    found = len(checked.findings)
    outcomes = {
        "failed": f"{counted(found, 'finding')} in {counted(num_cases, 'case')}",
        "held": f"nothing found in {counted(num_cases, 'case')}",
        "not checked": "no case ran to an answer",
    }
    return f"Backend {checked.backend!r} on {checked.device}: {outcomes[checked.status]}"


def _about(checked: CheckDocument) -> Iterator[Section]:
    shipped = " ".join(part for part in (checked.distribution, checked.version) if part)
    source = ", ".join(part for part in (shipped, checked.declared_at) if part)
    if source:
        yield Lines((f"declared in {source}",), "places")
    kit = f"the checks of backend-caps {checked.kit_version}"
    seeds = counted(len(checked.effort.seeds), "seed")
    worth = "docs/explanation/what-a-pass-means.md says what a pass is worth"
    yield Lines((f"by {kit}, {seeds} a scenario; {worth}",))


def _claims(checked: CheckDocument) -> Iterator[Section]:
    """Show every claim; where some checks ran alone, those that these are about."""
    is_part = any(own.reason == NOT_ASKED for own in checked.claims)
    about = {claim for own in checked.checks for claim in own.claims}
    shown = [own for own in checked.claims if own.capability in about or not is_part]
    if shown:
        yield table_of(shown, _CLAIMS)
    if left_out := len(checked.claims) - len(shown):
        yield Lines((f"{counted(left_out, 'other claim')}: not asked about",))


_CLAIMS: Columns[ClaimDocument] = {
    "claim": lambda own: own.capability,
    "value": lambda own: words_of(own.value) + (", or by condition" if own.conditional else ""),
    "status": lambda own: own.status,
    "by": lambda own: own.reason or ", ".join(own.checks),
}
_CHECKS: Columns[CheckedDocument] = {
    "check": lambda own: own.code,
    "about": lambda own: ", ".join(own.claims) or _OWED,
    "status": lambda own: own.status,
    "cases": lambda own: f"{len(own.cases) or ''}",
    "seconds": lambda own: f"{own.seconds:.1f}" if own.cases else "",
}
_EXERCISED: Columns[ExercisedDocument] = {
    "role": lambda own: own.role,
    "phase": lambda own: own.phase,
    "forward": lambda own: own.forward,
    "kind of batch": lambda own: own.batch_kind,
    "cases": lambda own: f"{own.num_cases or 'none'}",
}


def _reasons(checked: CheckDocument) -> Iterator[Section]:
    rows = [(own.code, own.reason) for own in checked.checks if own.reason]
    rows += [
        (own.code, f"{counted(own.num_blocked, 'case')}: the run to compare with failed")
        for own in checked.checks
        if own.num_blocked and not own.reason
    ]
    return titled_table("Not checked", ("check", "because"), rows, "names")


def _findings(checked: CheckDocument) -> Iterator[Section]:
    for own in checked.checks:
        if own.findings:
            broken = f"{', '.join(own.claims)} {'does' if len(own.claims) == 1 else 'do'} not hold"
            yield Heading(f"{own.code}: {broken if own.claims else f'{_DUTY} does not hold'}")
            alike_by_place = grouped(
                ((each.what, each.file, each.line), each) for each in own.findings
            )
            for alike in alike_by_place.values():
                yield from _finding(alike)
                yield Lines((f"  {alike[0].replay}",), "commands")


def _finding(alike: list[FindingDocument]) -> Iterator[Section]:
    finding = alike[0]
    yield Lines((finding.what,))
    if finding.file is not None:
        yield Lines((f"  at {finding.file}:{finding.line}",), "places")
    scenario = "no batch" if finding.scenario is None else finding.scenario
    more = f"; in {counted(len(alike) - 1, 'more case')} too" if len(alike) > 1 else ""
    yield Lines((f"  case {scenario}, schedule {finding.schedule}, seed {finding.seed}{more}",))


def _hints(checked: CheckDocument) -> Iterator[Section]:
    rows = [(hint.claim, hint.what, hint.check) for hint in checked.hints]
    title = "May claim more; no proof, and no fault"
    return titled_table(title, ("claim", "what was seen", "by"), rows)


def _lines(lines: LinesDocument | None) -> Iterator[Section]:
    if lines is None or not lines.num_lines:
        return
    share = 100 * lines.num_run // lines.num_lines
    total = f"lines of the backend that ran: {lines.num_run} of {lines.num_lines} ({share} %)"
    missed = [own for own in lines.files if own.missing]
    yield Lines((total, *(f"  did not run: {own.file} {_some(own.missing)}" for own in missed)))


def _some(ranges: list[str]) -> str:
    listed, more = ", ".join(ranges[:_STRETCHES]), len(ranges) - _STRETCHES
    return f"{listed} and {more} more" if more > 0 else listed


def _said(checked: CheckDocument) -> Iterator[Section]:
    rows = [(own.text, f"{own.count}") for own in checked.said[:_SAID]]
    yield from titled_table("Said meanwhile", ("line", "times"), rows)
    if len(checked.said) > _SAID:
        yield Lines((f"and {len(checked.said) - _SAID} more",))


def check_list_view(listed: CheckListDocument) -> Iterator[Section]:
    """Show the checks that there are, and what each can and cannot say."""
    for own in listed.checks:
        yield Heading(own.code)
        about = f"about: {', '.join(own.claims) or _OWED}"
        after = (f"says nothing unless these hold: {', '.join(own.after)}",) if own.after else ()
        yield Lines((own.title, about, f"proves: {own.proves}", f"cannot: {own.cannot}", *after))


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
    told = {"device": checked.device, "claims": ", ".join(own.claims)}
    for key, value in {**told, "proves": own.proves, "cannot": own.cannot}.items():
        SubElement(properties, "property", name=key, value=_xml_text(value))
    failed = grouped((finding.case, finding) for finding in own.findings)
    for case in own.cases:
        test = SubElement(suite, "testcase", classname=name, name=case.partition("/")[2])
        _fail(test, failed.get(case, []))
    if own.reason is not None:
        skipped = SubElement(suite, "testcase", classname=name, name=own.code)
        SubElement(skipped, "skipped", message=_xml_text(own.reason))
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
    failure = SubElement(test, "failure", message=_xml_text(first.what), type=first.check)
    lines = []
    for each in findings:
        place = [] if each.file is None else [f"at {each.file}:{each.line}"]
        claims = ", ".join(each.claims) or _DUTY
        lines += [each.what, *place, f"claims: {claims}", f"replay: {each.replay}"]
    failure.text = _xml_text("\n".join(lines))


def _xml_text(text: str) -> str:
    """Leave out what XML cannot hold."""
    return _NOT_XML.sub("\ufffd", text)


_SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)
_ROOT = "%SRCROOT%"
"""What relative files are relative to: the folder that the check ran in."""


def sarif(checked: CheckDocument) -> str:
    """Write a check as a SARIF log of one run: each finding is an error, each hint a note."""
    found = [_sarif_finding(each, checked) for each in checked.findings]
    notes = [_sarif_hint(each, checked) for each in checked.hints]
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


def _position(checked: CheckDocument, code: str) -> int:
    """Find a check's rule."""
    return [own.code for own in checked.checks].index(code)


def _sarif_finding(finding: FindingDocument, checked: CheckDocument) -> JsonValue:
    claims = ", ".join(finding.claims) or _DUTY
    declared = _place(checked.declared_at)
    place = declared if finding.file is None else (finding.file, finding.line)
    return {
        "ruleId": finding.check,
        "ruleIndex": _position(checked, finding.check),
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


def _sarif_hint(hint: HintDocument, checked: CheckDocument) -> JsonValue:
    return {
        "ruleId": hint.check,
        "ruleIndex": _position(checked, hint.check),
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
