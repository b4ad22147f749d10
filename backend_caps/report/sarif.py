"""A check as SARIF 2.1.0, which code hosts show beside the lines that it names."""

from __future__ import annotations

import json
from pathlib import PurePath
from urllib.parse import quote

from pydantic import JsonValue

from backend_caps.report.check_documents import (
    CheckDocument,
    CheckedDocument,
    FindingDocument,
    HintDocument,
)
from backend_caps.report.document import legible_json

_SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)
_ROOT = "%SRCROOT%"
"""What relative files are relative to: the folder that the check ran in."""


def sarif(checked: CheckDocument) -> str:
    """Write a check as a SARIF log of one run: each finding is an error, each hint a note."""
    codes = [own.code for own in checked.checks]
    found = [_finding(each, codes.index(each.check), checked) for each in checked.findings]
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


def _finding(finding: FindingDocument, at: int, checked: CheckDocument) -> JsonValue:
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
