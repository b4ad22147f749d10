"""What of plugins holds with engines, as CI systems read it: JUnit's XML, and SARIF."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from pydantic import JsonValue

from backend_caps.compatibility.contact import ContactKind, Verdict
from backend_caps.report.ci_formats import (
    Level,
    Outcome,
    Place,
    Result,
    Suite,
    SuiteCase,
    junit_text,
    location,
    sarif_text,
)
from backend_caps.report.fits_documents import ContactDocument, FitsDocument, PairDocument
from backend_caps.report.fits_views import sentence, summary, title
from backend_caps.report.words import grouped

_LEVELS: Mapping[Verdict, Level] = {
    Verdict.BREAKS: "error",
    Verdict.CHANGED: "warning",
    Verdict.UNUSED: "note",
}
_BECOMES = {
    Verdict.BREAKS: "raises, or takes an argument for another parameter",
    Verdict.CHANGED: "raises nothing, and may do something else",
    Verdict.UNUSED: "is taken by the engine no more",
}
_KINDS = {
    ContactKind.ENTRY_POINT: "An entry point, whose group the engine looks for,",
    ContactKind.IMPORT: "An import of one of the engine's modules or names",
    ContactKind.READ: "A read of an attribute of the engine",
    ContactKind.PATCH: "An assignment to an attribute of the engine",
    ContactKind.CALL: "A call of one of the engine's functions or classes",
    ContactKind.RESULT: "A result that is unpacked or returned, on either side,",
    ContactKind.OVERRIDE: "A method in the place of one of the engine's",
    ContactKind.CONSTRUCTOR: "The constructor of a class that the engine makes instances of",
    ContactKind.MEMBER: "A method or an attribute that the engine asks of a class of the plugin",
    ContactKind.CLAIM: "A capability that the plugin declares, beside what its class states,",
}
_ENGINE = "ENGINE"
"""SARIF's name for the folder that an engine's paths start from."""
_Found: TypeAlias = tuple[PairDocument, ContactDocument]


def fits_junit(document: FitsDocument) -> str:
    """Write a suite for each pair, and in it a case for each finding and what was not checked."""
    return junit_text("backend-caps fits", [_suite(pair) for pair in document.pairs])


def _suite(pair: PairDocument) -> Suite:
    """Write a pair; its first case is all points of contact that hold."""
    lines = "\n".join(summary(pair))
    unknown = Outcome(kind="error", message="it cannot be said whether it holds", text=lines)
    is_open = pair.status == "cannot say"
    whole = SuiteCase(
        name="points of contact",
        outcome=unknown if is_open else None,
        printed="" if is_open else lines,
    )
    cases = [whole, *map(_case, pair.findings), *map(_case, pair.not_checked)]
    return Suite(name=title(pair), cases=cases)


def _case(contact: ContactDocument) -> SuiteCase:
    """Write a point of contact: a break is a failure, and what is not checked is skipped."""
    name = f"{contact.kind.value} {contact.what} at {contact.at}"
    outcome, printed = None, ""
    match contact.verdict:
        case Verdict.BREAKS:
            text = "\n".join(_lines(contact))
            outcome = Outcome(
                kind="failure",
                message=sentence(contact),
                type_=_rule_id(contact.kind, contact.verdict),
                text=text,
            )
        case Verdict.NOT_CHECKED:
            outcome = Outcome(kind="skipped", message=sentence(contact))
        case verdict:
            printed = "\n".join((f"{verdict.value}: {sentence(contact)}", *_lines(contact)[1:]))
    return SuiteCase(name=name, outcome=outcome, place=Place.of(contact.at), printed=printed)


def _lines(contact: ContactDocument) -> list[str]:
    places = {
        "plugin": contact.at,
        "engine": contact.engine_at,
        "if": contact.given,
        "since": contact.since,
        "write": contact.remedy,
    }
    return [sentence(contact), *(f"{name}: {text}" for name, text in places.items() if text)]


def fits_sarif(document: FitsDocument) -> str:
    """Write a SARIF log: a result for each finding at the plugin's line, once for all releases."""
    alike = grouped(
        ((each.verdict, each.kind, each.what, each.why, each.at, each.given), (pair, each))
        for pair in document.pairs
        for each in pair.findings
    )
    found = {(own.kind, own.verdict) for own in (group[0][1] for group in alike.values())}
    engines = sorted({pair.engine for pair in document.pairs})
    root: JsonValue = {_ENGINE: {"description": {"text": "the source of the engine"}}}
    return sarif_text(
        f"backend-caps/fits/{'+'.join(engines)}",
        document.tool_version,
        [
            _rule(kind, verdict)
            for kind in ContactKind
            for verdict in _LEVELS
            if (kind, verdict) in found
        ],
        [_result(group) for group in alike.values()],
        originalUriBaseIds=root,
        properties={"pairs": [title(pair) for pair in document.pairs]},
    )


def _rule_id(kind: ContactKind, verdict: Verdict) -> str:
    return f"{kind.value}-{verdict.value}".replace(" ", "-")


def _rule(kind: ContactKind, verdict: Verdict) -> Mapping[str, JsonValue]:
    text = f"{_KINDS[kind]} {_BECOMES[verdict]}."
    return {
        "id": _rule_id(kind, verdict),
        "shortDescription": {"text": f"{kind.value}: {verdict.value}"},
        "fullDescription": {"text": text},
        "help": {"text": text},
    }


def _result(group: Sequence[_Found]) -> Result:
    pair, first = group[0]
    # A line's number changes with every edit above it, and is no part of what a finding is.
    file = Place.of(first.at).file
    identity = f"{pair.plugin}/{pair.engine}/{file}/{first.what}/{first.given}"
    others: dict[str, JsonValue] = {"partialFingerprints": {"contact/v1": identity}}
    if related := [*_related(group)]:
        others["relatedLocations"] = related
    return Result(
        rule=_rule_id(first.kind, first.verdict),
        level=_LEVELS[first.verdict],
        text=" ".join(_sentences(group)),
        place=Place.of(first.at),
        others=others,
    )


def _sentences(group: Sequence[_Found]) -> Iterator[str]:
    pair, first = group[0]
    yield f"{sentence(first)}."
    yield f"Compared: {'; '.join(title(each) for each, _ in group)}."
    if first.given:
        yield f"Where: {first.given}."
    if first.since:
        yield f"Since {pair.engine} {first.since}."
    if first.remedy:
        yield f"Write: {first.remedy}."


def _related(group: Sequence[_Found]) -> Iterator[JsonValue]:
    """Name the engine's places, each with its release."""
    for pair, contact in group:
        if contact.engine_at is not None:
            place = location(Place.of(contact.engine_at), _ENGINE)
            release = " ".join(filter(None, (pair.engine, pair.version)))
            yield {**place, "message": {"text": release}}
