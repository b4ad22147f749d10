"""The JSON of plans: a plan, a selection of backends, and steps relayed under a plan."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Literal, TypeAlias

from pydantic import BeforeValidator, Field

from backend_caps.capability.provenance import BY_HAND
from backend_caps.report.document import LEFT_OUT, TEXT, WRITTEN, Document, Written
from backend_caps.resolution.flips import Flip
from backend_caps.resolution.plan import Choice, Plan


def _source_text(source: object) -> str | None:
    """Write where a backend is declared; nothing for what no distribution ships."""
    return None if source in {None, BY_HAND} else str(source)


SourceText: TypeAlias = Annotated[str | None, BeforeValidator(_source_text)]
"""The text of a `Source`."""


class ProblemDocument(Document):
    """What is wrong."""

    code: str
    """Stable; docs/reference/problems.md lists them."""
    message: str
    """What is wrong, with the values."""
    remedy: str
    """What to do."""


class CauseDocument(Document):
    """One contribution to a value."""

    kind: Annotated[Literal["backend", "rule", "override", "engine"], WRITTEN]
    """Who it names."""
    name: str
    """The backend, the rule, or the overridden capability."""
    role: Annotated[str | None, WRITTEN]
    """The role that a backend is used in."""
    phase: Annotated[str | None, WRITTEN]
    """The phase that it counts in."""
    value: Written
    """What it contributes."""
    reason: str
    """Why, in the words of the declaration or the rule."""
    origin: Annotated[str, WRITTEN]
    """How its value came to be."""
    source: SourceText
    """Where a backend is declared: distribution, version, file and line; null if nowhere."""
    via: Annotated[tuple[str, ...] | None, BeforeValidator(lambda via: via or None), LEFT_OUT] = (
        None
    )
    """The composites of which the backend is a part, outermost first, where there are any."""
    rank: Annotated[int | None, LEFT_OUT] = None
    """The rank it comes from, where plans of several are joined."""
    host: Annotated[str | None, LEFT_OUT] = None
    """That rank's machine."""


class ValueDocument(Document):
    """One value of a plan."""

    value: Written
    """The join of every cause's; no limit is null."""
    effect: Annotated[str, TEXT]
    """What it does on this server, or `no effect: ` and why."""
    causes: list[CauseDocument]
    """Every contribution, the deciding ones first."""


class FlipDocument(Document):
    """Changes that together lead to a better value."""

    capability: str
    """The capability whose value gets better."""
    phase: Annotated[str | None, WRITTEN]
    """The phase of the value; null for the server's."""
    value: Written
    """What it is."""
    becomes: Written
    """What it becomes with all the remedies, as found by resolving once more."""
    remedies: list[str]
    """The changes; all of them together."""


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
    source: SourceText
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
    policy: Annotated[Literal["strict", "warn", "quiet"], WRITTEN]
    """Whether what nobody knows speaks against a backend: under strict."""
    rules: str
    """The rule set."""
    choices: list[ChoiceDocument]
    """One for each flag that was asked."""


class PlanDocument(Document):
    """What a server is configured by, and why."""

    schema_: Annotated[Literal["backend-caps/plan@1"], Field(alias="schema")]
    needs_cpu_seq_lens: bool
    """Whether `host_seq_lens` is `exact`: SGLang's question."""
    server: dict[str, ValueDocument]
    """The capabilities with one value for the server."""
    phases: dict[Annotated[str, WRITTEN], dict[str, ValueDocument]]
    """For each phase, the capabilities with a value of their own there."""
    flips: list[FlipDocument]
    """What would lead to better values."""
    problems: list[ProblemDocument]
    """What is wrong with the plan."""
    policy: Annotated[Literal["strict", "warn", "quiet"], WRITTEN]
    """What is done about the problems: refused, shown, or only kept here."""
    rules: str
    """The rule set."""
    fingerprint: str
    """A digest of the values: equal plans configure equal servers."""
    engine: Annotated[str | None, LEFT_OUT] = None
    """The engine whose own backends were read for it, with its version; left out for none."""
    choices: Annotated[list[ChoiceDocument] | None, LEFT_OUT] = None
    """What was chosen where a flag says `auto`; left out where none does."""

    def all_values(self) -> Iterator[tuple[str | None, str, ValueDocument]]:
        """List every value with its phase, None for the server's, and its capability."""
        yield from ((None, name, value) for name, value in self.server.items())
        for phase, values in self.phases.items():
            yield from ((phase, name, value) for name, value in values.items())


class StepDocument(Document):
    """What one relayed step started from."""

    number: int
    """Counted from 1."""
    seq_lens: list[int]
    """The lengths on the device."""
    seq_lens_cpu: list[int] | None
    """The mirror; null where there is none."""
    seq_lens_cpu_upper_bound: list[int] | None
    """The bounds; null where there are none."""
    input_ids: list[int]
    """The tokens that the forward starts from."""
    bytes_to_host: int
    """What crossed to the host for it; on a device without streams, what would cross from one that
    has them."""


class RelayDocument(Document):
    """A plan, and some steps relayed through the FutureMap that it configures."""

    schema_: Annotated[Literal["backend-caps/relay@1"], Field(alias="schema")]
    device: str
    """The torch device of the FutureMap."""
    has_streams: bool
    """Whether work runs there beside the host. The CPU has none, and nothing crosses from it."""
    plan: PlanDocument
    """What configured it."""
    steps: list[StepDocument]
    """What was relayed."""


def plan_document(plan: Plan, flips: Iterable[Flip], *, engine: str | None = None) -> PlanDocument:
    """Write a plan as its document; `engine` names the one whose backends were read for it."""
    return PlanDocument.of(
        plan,
        schema_="backend-caps/plan@1",
        flips=[
            FlipDocument.of(own, remedies=[each.text for each in own.remedies]) for own in flips
        ],
        rules=plan.rules.name,
        engine=engine,
        choices=choice_documents(plan.choices) or None,
    )


def choice_documents(choices: Iterable[Choice]) -> list[ChoiceDocument]:
    """Write what was chosen, flag by flag."""
    return [
        ChoiceDocument.of(
            choice,
            text=str(choice),
            chosen=None if choice.chosen is None else choice.chosen.name,
            candidates=[
                CandidateDocument.of(each, rank=rank if each.fits else None)
                for rank, each in enumerate(choice.candidates, start=1)
            ],
        )
        for choice in choices
    ]
