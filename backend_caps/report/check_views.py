"""A check in every format: as sections, and as what CI systems read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pydantic import JsonValue

from backend_caps.report.check_catalog import CheckListDocument
from backend_caps.report.check_documents import (
    NO_CHECK,
    NOT_ASKED,
    CheckDocument,
    CheckedDocument,
    ClaimDocument,
    CostDocument,
    DimensionDocument,
    ExercisedDocument,
    FindingDocument,
    HintDocument,
    LinesDocument,
    PartCostDocument,
)
from backend_caps.report.ci_formats import (
    Outcome,
    Place,
    Result,
    Suite,
    SuiteCase,
    junit_text,
    sarif_text,
)
from backend_caps.report.sections import Columns, Heading, Lines, Section, table_of, titled_table
from backend_caps.report.words import counted, grouped, words_of
from backend_caps.resolution.rules import cost_of_undeclared

_OWED = "owed to the engine"
"""Shown in the place of claims for a check of every backend's duty to the engine."""
_DUTY = "what every backend owes the engine"
"""The same, in a sentence."""
_MAX_RANGES = 12
"""Ranges of missed lines shown for one file; the document has all."""
_MAX_PRINTED = 20
"""Printed lines shown; the document has all."""


def check_view(checked: CheckDocument) -> Iterator[Section]:
    """Show a backend's findings, claims, checks and coverage."""
    yield Heading(_title(checked))
    yield from _about(checked)
    yield from _findings(checked)
    yield Heading("Claims")
    yield from _claims(checked)
    yield Heading("Checks")
    yield table_of(checked.checks, _CHECKS, "names")
    yield from _reasons(checked)
    yield from _hints(checked)
    yield Heading("Exercised")
    yield table_of(checked.exercised, _EXERCISED)
    if checked.dimensions:
        yield table_of(checked.dimensions, _DIMENSIONS)
    yield from _costs(checked)
    yield from _lines(checked.lines)
    yield from _printed(checked)


def _title(checked: CheckDocument) -> str:
    num_cases = sum(len(check.cases) for check in checked.checks)
    num_findings = len(checked.findings)
    outcomes = {
        "failed": f"{counted(num_findings, 'finding')} in {counted(num_cases, 'case')}",
        "held": f"nothing found in {counted(num_cases, 'case')}",
        "not checked": "no case ran to an answer",
    }
    return f"Backend {checked.backend!r} on {checked.device}: {outcomes[checked.status]}"


def _about(checked: CheckDocument) -> Iterator[Section]:
    release = " ".join(part for part in (checked.distribution, checked.version) if part)
    source = ", ".join(part for part in (release, checked.declared_at) if part)
    if source:
        yield Lines((f"declared in {source}",), "places")
    if checked.stand_ins:
        yield Lines((f"with stand-ins for what needs a GPU: {'; '.join(checked.stand_ins)}",))
    kit = f"the checks of backend-caps {checked.kit_version}"
    seeds = counted(len(checked.effort.seeds), "seed")
    worth = "docs/explanation/what-a-pass-means.md says what a pass is worth"
    yield Lines((f"by {kit}, {seeds} a scenario; {worth}",))


def _claims(checked: CheckDocument) -> Iterator[Section]:
    """Show every claim; where only some checks ran, only the claims that these are about."""
    is_part = any(claim.reason == NOT_ASKED for claim in checked.claims)
    about = {claim for check in checked.checks for claim in check.claims}
    asked = [claim for claim in checked.claims if claim.capability in about or not is_part]
    if shown := [claim for claim in asked if claim.reason != NO_CHECK]:
        yield table_of(shown, _CLAIMS)
    if left_out := len(checked.claims) - len(asked):
        yield Lines((f"{counted(left_out, 'other claim')}: not asked about",))
    if unchecked := [claim.capability for claim in asked if claim.reason == NO_CHECK]:
        yield Lines((f"no check is about {', '.join(unchecked)}",))


_CLAIMS: Columns[ClaimDocument] = {
    "claim": lambda claim: claim.capability,
    "value": lambda claim: (
        words_of(claim.value) + (", or by condition" if claim.conditional else "")
    ),
    "status": lambda claim: claim.status,
    "by": lambda claim: claim.reason or ", ".join(claim.checks),
}
_CHECKS: Columns[CheckedDocument] = {
    "check": lambda check: check.code,
    "about": lambda check: ", ".join(check.claims) or _OWED,
    "status": lambda check: check.status,
    "cases": lambda check: f"{len(check.cases) or ''}",
    "seconds": lambda check: f"{check.seconds:.1f}" if check.cases else "",
}
_EXERCISED: Columns[ExercisedDocument] = {
    "role": lambda forward: forward.role,
    "phase": lambda forward: forward.phase,
    "forward": lambda forward: forward.forward,
    "kind of batch": lambda forward: forward.batch_kind,
    "cases": lambda forward: f"{forward.num_cases or 'none'}",
}


_DIMENSIONS: Columns[DimensionDocument] = {
    "dimension": lambda own: own.dimension,
    "values in cases": lambda own: ", ".join(own.values),
}


_COSTS: Columns[CostDocument] = {
    "forward": lambda cost: cost.forward,
    "host lengths": lambda cost: cost.host_seq_lens,
    "requests, tokens": lambda cost: f"{cost.num_requests}, {cost.num_context_tokens}",
    "prepare": lambda cost: _part(cost.prepare),
    "each layer": lambda cost: _part(cost.layer),
    "holds": lambda cost: f"{cost.bytes_held} bytes",
}


def _costs(checked: CheckDocument) -> Iterator[Section]:
    """Show what a batch of each forward costs."""
    if checked.costs:
        yield Heading("Cost of an eager batch")
        yield table_of(checked.costs, _COSTS)


def cost_words(cost: CostDocument) -> str:
    """Say in a sentence what a batch costs."""
    size = f"{counted(cost.num_requests, 'request')} over {cost.num_context_tokens} tokens"
    return (
        f"an eager batch of {cost.forward} ({size}, host lengths: {cost.host_seq_lens}) has "
        f"{_part(cost.prepare)} in its preparation, {_part(cost.layer)} in each layer, and holds "
        f"{cost.bytes_held} bytes beside the KV cache"
    )


def _part(cost: PartCostDocument) -> str:
    """Write the launches, and what is not zero of the rest."""
    rest = {
        counted(cost.host_waits, "host wait"): cost.host_waits,
        f"{cost.bytes_to_host} bytes to the host": cost.bytes_to_host,
        f"{cost.bytes_to_device} bytes to the device": cost.bytes_to_device,
    }
    launches = counted(cost.launches, "launch", "launches")
    return ", ".join([launches, *(text for text, own in rest.items() if own)])


def _reasons(checked: CheckDocument) -> Iterator[Section]:
    """Show each reason once, with the checks that were not made for it."""
    by_reason = grouped((check.reason, check.code) for check in checked.checks if check.reason)
    rows = [(", ".join(codes), reason) for reason, codes in by_reason.items()]
    rows += [
        (check.code, f"{counted(check.num_blocked, 'case')}: the run to compare with failed")
        for check in checked.checks
        if check.num_blocked and not check.reason
    ]
    return titled_table("Not checked", ("check", "because"), rows, "names")


def _findings(checked: CheckDocument) -> Iterator[Section]:
    """Show each fault once, under the checks that found it."""
    heading = None
    alike_by_place = grouped(
        ((finding.what, finding.file, finding.line), finding) for finding in checked.findings
    )
    for alike in alike_by_place.values():
        if heading != (heading := _broken(alike)):
            yield Heading(heading)
        yield from _finding(alike)
        yield from _price(alike[0], checked.costs or ())
        yield Lines((f"  {alike[0].replay}",), "commands")


def _broken(alike: list[FindingDocument]) -> str:
    """Say which claims do not hold, by which checks."""
    codes = dict.fromkeys(finding.check for finding in alike)
    claims = dict.fromkeys(claim for finding in alike for claim in finding.claims)
    broken = f"{', '.join(claims)} {'does' if len(claims) == 1 else 'do'} not hold"
    return f"{', '.join(codes)}: {broken if claims else f'{_DUTY} does not hold'}"


def _finding(alike: list[FindingDocument]) -> Iterator[Section]:
    finding = alike[0]
    yield Lines((finding.what,))
    if finding.file is not None:
        yield Lines((f"  at {finding.file}:{finding.line}",), "places")
    scenario = "no batch" if finding.scenario is None else finding.scenario
    more = f"; in {counted(len(alike) - 1, 'more case')} too" if len(alike) > 1 else ""
    yield Lines((f"  case {scenario}, schedule {finding.schedule}, seed {finding.seed}{more}",))


def _price(finding: FindingDocument, costs: Sequence[CostDocument]) -> Iterator[Section]:
    """Show what a batch of a finding costs, where the finding is about that."""
    forward = (finding.scenario or "").partition(",")[0]
    if finding.check in _OF_COST:
        yield from (Lines((f"  {cost_words(own)}",)) for own in costs if own.forward == forward)


_OF_COST = frozenset({"sync-free-prepare", "memory", "linear-states-waits"})
"""Checks of what a batch costs."""


def _hints(checked: CheckDocument) -> Iterator[Section]:
    rows = [
        (hint.claim, hint.what, cost_of_undeclared(hint.claim), hint.check)
        for hint in checked.hints
    ]
    title = "May claim more; no proof, and no fault"
    return titled_table(title, ("claim", "what was seen", "without it", "by"), rows)


def _lines(lines: LinesDocument | None) -> Iterator[Section]:
    if lines is None or not lines.num_lines:
        return
    share = 100 * lines.num_run // lines.num_lines
    total = f"lines of the backend that ran: {lines.num_run} of {lines.num_lines} ({share} %)"
    missed = [file for file in lines.files if file.missing]
    yield Lines((total, *(f"  did not run: {file.file} {_some(file.missing)}" for file in missed)))


def _some(ranges: list[str]) -> str:
    listed, more = ", ".join(ranges[:_MAX_RANGES]), len(ranges) - _MAX_RANGES
    return f"{listed} and {more} more" if more > 0 else listed


def _printed(checked: CheckDocument) -> Iterator[Section]:
    rows = [(line.text, f"{line.count}") for line in checked.printed[:_MAX_PRINTED]]
    yield from titled_table("Printed meanwhile", ("line", "times"), rows)
    if len(checked.printed) > _MAX_PRINTED:
        yield Lines((f"and {len(checked.printed) - _MAX_PRINTED} more",))


def check_list_view(listed: CheckListDocument) -> Iterator[Section]:
    """Show every check with what it proves and cannot find."""
    for check in listed.checks:
        yield Heading(check.code)
        about = f"about: {', '.join(check.claims) or _OWED}"
        after = (
            (f"says nothing unless these hold: {', '.join(check.after)}",) if check.after else ()
        )
        yield Lines(
            (check.title, about, f"proves: {check.proves}", f"cannot: {check.cannot}", *after)
        )


def junit(checked: CheckDocument) -> str:
    """Write a check as a JUnit report: a suite for each check, a test case for each case."""
    suites = [_suite(check, checked) for check in checked.checks]
    return junit_text(f"backend-caps check {checked.backend}", suites)


def _suite(check: CheckedDocument, checked: CheckDocument) -> Suite:
    """Write one check; one that ran no case is skipped, with its reason."""
    failed = grouped((finding.case, finding) for finding in check.findings)
    cases = [_case(case.partition("/")[2], failed.get(case, [])) for case in check.cases]
    if check.reason is not None:
        cases += [SuiteCase(name=check.code, outcome=Outcome(kind="skipped", message=check.reason))]
    return Suite(
        name=f"{checked.backend}.{check.code}",
        cases=cases,
        properties={
            "device": checked.device,
            "claims": ", ".join(check.claims),
            "proves": check.proves,
            "cannot": check.cannot,
        },
        seconds=check.seconds,
    )


def _case(name: str, findings: Sequence[FindingDocument]) -> SuiteCase:
    """Write a case's findings as one failure: JUnit allows one a test case."""
    if not findings:
        return SuiteCase(name=name)
    first, lines = findings[0], list[str]()
    for finding in findings:
        place = [] if finding.file is None else [f"at {finding.file}:{finding.line}"]
        claims = ", ".join(finding.claims) or _DUTY
        lines += [finding.what, *place, f"claims: {claims}", f"replay: {finding.replay}"]
    outcome = Outcome(kind="failure", message=first.what, type_=first.check, text="\n".join(lines))
    return SuiteCase(name=name, outcome=outcome, place=_site(first))


def sarif(checked: CheckDocument) -> str:
    """Write a check as a SARIF log of one run: each finding is an error, each hint a note."""
    return sarif_text(
        f"backend-caps/{checked.backend}/{checked.device}",
        checked.kit_version,
        [_rule(check) for check in checked.checks],
        [
            *(_sarif_finding(finding, checked) for finding in checked.findings),
            *(_sarif_hint(hint, checked) for hint in checked.hints),
        ],
        properties={"backend": checked.backend, "device": checked.device},
    )


def _rule(check: CheckedDocument) -> Mapping[str, JsonValue]:
    return {
        "id": check.code,
        "shortDescription": {"text": check.title},
        "fullDescription": {"text": check.proves},
        "help": {"text": f"Proves: {check.proves} Cannot find: {check.cannot}"},
        "properties": {"claims": [*check.claims]},
    }


def _sarif_finding(finding: FindingDocument, checked: CheckDocument) -> Result:
    claims = ", ".join(finding.claims) or _DUTY
    properties: JsonValue = {
        "backend": checked.backend,
        "case": finding.case,
        "claims": [*finding.claims],
        "replay": finding.replay,
        "schedule": finding.schedule,
        "seed": finding.seed,
    }
    return Result(
        rule=finding.check,
        level="error",
        text=f"{claims}: {finding.what}. Replay: {finding.replay}",
        place=_site(finding) or _declared(checked),
        others={
            "partialFingerprints": {"case/v1": f"{checked.backend}/{finding.case}"},
            "properties": properties,
        },
    )


def _sarif_hint(hint: HintDocument, checked: CheckDocument) -> Result:
    return Result(
        rule=hint.check,
        level="note",
        text=f"{hint.claim} may be too modest: {hint.what}",
        place=_declared(checked),
        others={"properties": {"backend": checked.backend, "claims": [hint.claim]}},
    )


def _site(finding: FindingDocument) -> Place | None:
    return None if finding.file is None else Place(file=finding.file, line=finding.line)


def _declared(checked: CheckDocument) -> Place | None:
    """Return the declaration's place: that of what no line of the backend did."""
    return None if checked.declared_at is None else Place.of(checked.declared_at)
