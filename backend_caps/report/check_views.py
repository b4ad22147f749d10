"""A check as sections: what became of each claim, what was found, and what was looked at."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from backend_caps.report.check_documents import (
    NOT_ASKED,
    CheckDocument,
    CheckedDocument,
    CheckListDocument,
    ClaimDocument,
    FindingDocument,
    LinesDocument,
)
from backend_caps.report.sections import Heading, Lines, Section, Table
from backend_caps.report.words import words_of

_OWED = "owed to the engine"
"""What a check is about that is about no claim."""
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
    columns = ("check", "about", "status", "cases", "seconds")
    yield Table(columns, tuple(map(_check, checked.checks)), cells="names")
    yield from _reasons(checked)
    yield from _findings(checked)
    yield from _hints(checked)
    yield from _exercised(checked)
    yield from _lines(checked.lines)
    yield from _said(checked)


def _title(checked: CheckDocument) -> str:
    num_cases = sum(len(own.cases) for own in checked.checks)
    found = len(checked.findings)
    told = {
        "failed": f"{_counted(found, 'finding')} in {_counted(num_cases, 'case')}",
        "held": f"nothing found in {_counted(num_cases, 'case')}",
        "not checked": "no case ran to an answer",
    }
    return f"Backend {checked.backend!r} on {checked.device}: {told[checked.status]}"


def _about(checked: CheckDocument) -> Iterator[Section]:
    shipped = " ".join(part for part in (checked.distribution, checked.version) if part)
    source = ", ".join(part for part in (shipped, checked.declared_at) if part)
    if source:
        yield Lines((f"declared in {source}",), "places")
    kit = f"the checks of backend-caps {checked.kit_version}"
    seeds = _counted(len(checked.effort.seeds), "seed")
    worth = "docs/explanation/what-a-pass-means.md says what a pass is worth"
    yield Lines((f"by {kit}, {seeds} a scenario; {worth}",))


def _claims(checked: CheckDocument) -> Iterator[Section]:
    """Show every claim; where some checks ran alone, those that these are about."""
    is_part = any(own.reason == NOT_ASKED for own in checked.claims)
    about = {claim for own in checked.checks for claim in own.claims}
    shown = [own for own in checked.claims if own.capability in about or not is_part]
    if shown:
        yield Table(("claim", "value", "status", "by"), tuple(map(_claim, shown)))
    if left_out := len(checked.claims) - len(shown):
        yield Lines((f"{_counted(left_out, 'other claim')}: not asked about",))


def _claim(claim: ClaimDocument) -> tuple[str, ...]:
    value = words_of(claim.value) + (", or by condition" if claim.conditional else "")
    return claim.capability, value, claim.status, claim.reason or ", ".join(claim.checks)


def _check(own: CheckedDocument) -> tuple[str, ...]:
    cases = f"{len(own.cases)}" if own.cases else ""
    seconds = f"{own.seconds:.1f}" if own.cases else ""
    return own.code, ", ".join(own.claims) or _OWED, own.status, cases, seconds


def _reasons(checked: CheckDocument) -> Iterator[Section]:
    rows = [(own.code, own.reason) for own in checked.checks if own.reason]
    rows += [
        (own.code, f"{_counted(own.num_blocked, 'case')}: the run to compare with failed")
        for own in checked.checks
        if own.num_blocked and not own.reason
    ]
    if rows:
        yield Heading("Not checked")
        yield Table(("check", "because"), tuple(rows), cells="names")


def _findings(checked: CheckDocument) -> Iterator[Section]:
    for own in checked.checks:
        if own.findings:
            broken = _wrong(own)
            yield Heading(f"{own.code}: {broken}")
            for alike in _alike(own.findings):
                yield from _finding(alike)
                yield Lines((f"  {alike[0].replay}",), "commands")


def _wrong(own: CheckedDocument) -> str:
    if not own.claims:
        return "what every backend owes the engine does not hold"
    return f"{', '.join(own.claims)} {'does' if len(own.claims) == 1 else 'do'} not hold"


def _alike(findings: list[FindingDocument]) -> Iterable[list[FindingDocument]]:
    """Group findings of one text and one line."""
    found: dict[tuple[str, str | None, int | None], list[FindingDocument]] = {}
    for each in findings:
        found.setdefault((each.what, each.file, each.line), []).append(each)
    return found.values()


def _finding(alike: list[FindingDocument]) -> Iterator[Section]:
    finding = alike[0]
    yield Lines((finding.what,))
    if finding.file is not None:
        yield Lines((f"  at {finding.file}:{finding.line}",), "places")
    scenario = "no batch" if finding.scenario is None else finding.scenario
    more = f"; in {_counted(len(alike) - 1, 'more case')} too" if len(alike) > 1 else ""
    yield Lines((f"  case {scenario}, schedule {finding.schedule}, seed {finding.seed}{more}",))


def _hints(checked: CheckDocument) -> Iterator[Section]:
    rows = [(hint.claim, hint.what, hint.check) for hint in checked.hints]
    if rows:
        yield Heading("May claim more; no proof, and no fault")
        yield Table(("claim", "what was seen", "by"), tuple(rows))


def _exercised(checked: CheckDocument) -> Iterator[Section]:
    rows = [
        (
            own.role,
            own.phase,
            own.forward,
            own.batch_kind,
            f"{own.num_cases}" if own.num_cases else "none",
        )
        for own in checked.exercised
    ]
    yield Heading("Exercised")
    yield Table(("role", "phase", "forward", "kind of batch", "cases"), tuple(rows))


def _lines(lines: LinesDocument | None) -> Iterator[Section]:
    if lines is None or not lines.num_lines:
        return
    share = 100 * lines.num_run // lines.num_lines
    told = f"lines of the backend that ran: {lines.num_run} of {lines.num_lines} ({share} %)"
    missed = [own for own in lines.files if own.missing]
    yield Lines((told, *(f"  did not run: {own.file} {_some(own.missing)}" for own in missed)))


def _some(ranges: list[str]) -> str:
    listed = ", ".join(ranges[:_STRETCHES])
    more = len(ranges) - _STRETCHES
    return f"{listed} and {more} more" if more > 0 else listed


def _said(checked: CheckDocument) -> Iterator[Section]:
    if not checked.said:
        return
    rows = [(own.text, f"{own.count}") for own in checked.said[:_SAID]]
    yield Heading("Said meanwhile")
    yield Table(("line", "times"), tuple(rows))
    if len(checked.said) > _SAID:
        yield Lines((f"and {len(checked.said) - _SAID} more",))


def check_list_view(listed: CheckListDocument) -> Iterator[Section]:
    """Show the checks that there are, and what each can and cannot say."""
    for own in listed.checks:
        yield Heading(own.code)
        about = f"about: {', '.join(own.claims) or _OWED}"
        after = (f"says nothing unless these hold: {', '.join(own.after)}",) if own.after else ()
        yield Lines(
            (own.title, about, f"proves: {own.proves}", f"cannot: {own.cannot}", *after),
        )


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
