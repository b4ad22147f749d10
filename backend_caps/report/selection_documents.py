"""The JSON of a selection: what was chosen where a flag says `auto`, and what was not."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import Field

from backend_caps.capability.backend import Problem
from backend_caps.capability.facts import Facts
from backend_caps.capability.fit import text_of
from backend_caps.capability.provenance import BY_HAND
from backend_caps.report.document import LEFT_OUT, Document
from backend_caps.resolution.plan import Candidate, Choice


class ReasonDocument(Document):
    """What speaks against a candidate, or what nobody knows of it."""

    code: str
    """Stable; docs/reference/problems.md lists them."""
    actual: Annotated[str | None, LEFT_OUT] = None
    """What is; left out where that is no single value."""
    needed: Annotated[str | None, LEFT_OUT] = None
    """What the backend needs instead; left out where it does not say."""
    message: str
    """Both in a sentence."""
    remedy: str
    """What to do."""


class CandidateDocument(Document):
    """A backend that was tried in a flag's place."""

    name: str
    """The name that flags use."""
    rank: int | None
    """Its place among those that fit, from 1; null where it does not."""
    priority: int
    """The `auto_priority` that it declares for this server; 0 where it declares none."""
    host_seq_lens: str | None
    """What the whole server needs with it; null where it could not be tried."""
    costs: str
    """What that does on this server, or `no effect: ` and why."""
    source: str | None
    """Where it is declared: distribution, version, file and line; null if nowhere."""
    reasons: list[ReasonDocument]
    """Everything that speaks against it."""
    unchecked: list[ReasonDocument]
    """What nobody knows; under strict it is among the reasons."""


class ChoiceDocument(Document):
    """One flag that says `auto`."""

    flag: str
    """In its command-line spelling."""
    text: str
    """In a sentence what it is, before whom, and how many fit."""
    chosen: str | None
    """The backend; null where none fits."""
    tied: list[str]
    """Those of the same priority, before which it goes by its name alone."""
    unknown_facts: list[str]
    """The facts that nothing could be checked against."""
    candidates: list[CandidateDocument]
    """Those that fit, best first; then the others, in the order that they would have."""


class SelectionDocument(Document):
    """Which backends fit a server, and which of them `auto` is."""

    schema_: Annotated[Literal["backend-caps/selection@1"], Field(alias="schema")]
    facts: dict[str, str]
    """What is known of machine and model, from facts and flags."""
    policy: Literal["strict", "warn", "quiet"]
    """Whether what nobody knows speaks against a backend: under strict."""
    rules: str
    """The rule set."""
    choices: list[ChoiceDocument]
    """One for each flag that was asked."""


def choice_documents(choices: Iterable[Choice]) -> list[ChoiceDocument]:
    """Write what was chosen, flag by flag."""
    return [_choice(choice) for choice in choices]


def _choice(choice: Choice) -> ChoiceDocument:
    ranks = {each.name: at for at, each in enumerate(choice.fitting, start=1)}
    return ChoiceDocument(
        flag=choice.flag,
        text=str(choice),
        chosen=None if choice.chosen is None else choice.chosen.name,
        tied=[*choice.tied],
        unknown_facts=[*choice.unknown_facts],
        candidates=[_candidate(each, ranks.get(each.name)) for each in choice.candidates],
    )


def _candidate(tried: Candidate, rank: int | None) -> CandidateDocument:
    return CandidateDocument(
        name=tried.name,
        rank=rank,
        priority=tried.priority,
        host_seq_lens=tried.host_seq_lens,
        costs=tried.costs,
        source=None if tried.source == BY_HAND else str(tried.source),
        reasons=_reasons(tried.reasons),
        unchecked=_reasons(tried.unchecked),
    )


def _reasons(problems: Iterable[Problem]) -> list[ReasonDocument]:
    return [
        ReasonDocument(
            code=found.code,
            actual=found.actual,
            needed=found.needed,
            message=found.message,
            remedy=found.remedy,
        )
        for found in problems
    ]


def facts_document(facts: Facts) -> dict[str, str]:
    """Write the facts that are known, in words."""
    return {name: text_of(value) for name, value in facts.known().items()}
