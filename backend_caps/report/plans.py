"""The JSON of plans: a plan, a selection of backends, and steps relayed under a plan."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Literal, TypeAlias

from pydantic import BeforeValidator, Field, model_validator

from backend_caps.capability.provenance import BY_HAND, Origin
from backend_caps.capability.vocabulary import CAPABILITIES
from backend_caps.report.document import LEFT_OUT, TEXT, WRITTEN, Document, Written, value_of
from backend_caps.report.launches import LaunchDocument
from backend_caps.resolution.flips import Flip
from backend_caps.resolution.plan import Cause, Choice, Plan, Resolved


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


class _KnownDocument(Document):
    """A part whose value is null where it is not known."""

    @model_validator(mode="before")
    @classmethod
    def _known(cls, source: object) -> object:
        """Take the known value of a plan's own objects; JSON has it already."""
        if not isinstance(source, Cause | Resolved):
            return source
        names = [name for name in cls.model_fields if hasattr(source, name)]
        return {**{name: getattr(source, name) for name in names}, "value": source.known_value}


class CauseDocument(_KnownDocument):
    """One contribution to a value."""

    kind: Annotated[Literal["backend", "rule", "override", "engine"], WRITTEN]
    """The kind of thing that it names."""
    name: str
    """The backend, the rule, or the overridden capability."""
    role: Annotated[str | None, WRITTEN]
    """The role that a backend is used in."""
    phase: Annotated[str | None, WRITTEN]
    """The phase that it counts in."""
    value: Written
    """What it contributes; null where no limit, or, as its origin says, not known."""
    reason: str
    """Why, in the words of the declaration or the rule."""
    origin: Annotated[str, WRITTEN]
    """How its value came to be."""
    source: SourceText
    """Where a backend is declared: distribution, version, file and line; null if nowhere."""
    via: Annotated[tuple[str, ...] | None, BeforeValidator(lambda v: v or None), LEFT_OUT] = None
    """The composites of which the backend is a part, outermost first, where there are any."""
    rank: Annotated[int | None, LEFT_OUT] = None
    """The rank it comes from, where plans of several are joined."""
    host: Annotated[str | None, LEFT_OUT] = None
    """That rank's machine."""


class ValueDocument(_KnownDocument):
    """One value of a plan."""

    value: Written
    """The join of every cause's; no limit is null."""
    origin: Annotated[Literal["not-known"] | None, WRITTEN, LEFT_OUT] = None
    """`not-known` where nothing states what decides it; `value` is null then, and the server is
    configured by the worst value. Left out where the value is known."""
    effect: Annotated[str, TEXT]
    """What it does on this server, or `no effect: ` and why."""
    causes: list[CauseDocument]
    """Every contribution, the deciding ones first."""

    @property
    def is_known(self) -> bool:
        """Whether something states it."""
        return self.origin is None

    def of_capability(self, name: str) -> object:
        """Return the value that a server is configured by: the worst where it is not known.

        Raises:
            ValueError: no plan holds such a value of the capability.
        """
        return value_of(name, self.value) if self.is_known else CAPABILITIES[name].worst

    def is_decided_by(self, cause: CauseDocument) -> bool:
        """Return whether a cause gives this value."""
        is_known = cause.origin != Origin.NOT_KNOWN.value
        return cause.value == self.value and is_known is self.is_known


class FlipDocument(Document):
    """Changes that together lead to a better value."""

    capability: str
    """The capability whose value gets better; `graphs` for the mode of graphs, `starts`
    for whether a refused server does."""
    phase: Annotated[str | None, WRITTEN]
    """The phase of the value; null for the server's."""
    value: Written
    """The value now."""
    becomes: Written
    """The value with all the remedies, as found by resolving once more."""
    remedies: list[str]
    """The changes; all of them together."""


class ReasonDocument(Document):
    """A reason against a candidate, or a need that could not be checked."""

    code: str
    """Stable; docs/reference/problems.md lists them."""
    actual: Annotated[str | None, LEFT_OUT] = None
    """The value on this server; left out where it is no single one."""
    needed: Annotated[str | None, LEFT_OUT] = None
    """The value that the backend needs instead; left out where it names none."""
    message: str
    """Both in a sentence."""
    remedy: str
    """What to do."""


class CandidateDocument(Document):
    """A backend that was tried as the value of a flag."""

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
    """Needs that could not be checked; under strict they are among the reasons."""


class ChoiceDocument(Document):
    """One flag whose value is `auto`."""

    flag: str
    """In its command-line spelling."""
    text: str
    """A sentence: the chosen backend, those that it goes before, and how many fit."""
    chosen: str | None
    """The backend; null where none fits."""
    tied: list[str]
    """Backends of the same priority; the chosen one goes before them by its name alone."""
    unknown_facts: list[str]
    """Facts that are not known, so that needs could not be checked."""
    candidates: list[CandidateDocument]
    """Backends that fit, best first; then the others, in the same order."""


class SelectionDocument(Document):
    """Which backends fit a server, and which of them `auto` chooses."""

    schema_: Annotated[Literal["backend-caps/selection@1"], Field(alias="schema")]
    facts: dict[str, str]
    """What is known of machine and model, from facts and flags."""
    policy: Annotated[Literal["strict", "warn", "quiet"], WRITTEN]
    """Under strict, a need that could not be checked is a reason against a backend."""
    rules: str
    """The rule set."""
    choices: list[ChoiceDocument]
    """One for each flag that backends were tried for."""


class EngineCandidateDocument(Document):
    """A backend of an engine, tried for all phases of a server."""

    name: str
    """The name that flags use."""
    is_default: bool
    """Whether the engine takes it where no flag names one."""
    starts: bool | None
    """Whether the engine accepts it; null where that is not known."""
    why: str | None
    """Why it does not, or why that is not known, in the engine's own words; null where it does."""
    at: str | None
    """Where in the engine; null where it starts."""
    host_seq_lens: str | None
    """What the server needs with it; null where it does not start, or that is not known."""
    costs: str | None
    """What that does on this server; null where it does not start."""
    has_overlap: bool | None
    """Whether the scheduler overlaps steps with it; null where it does not start."""
    has_graphs: bool | None
    """Whether decode steps replay graphs with it; null where it does not start."""
    page_size: int | None
    """The page size that the engine ends with; null where it does not start."""


class EngineSelectionDocument(Document):
    """Which backend an engine takes for a server, and which others it would."""

    schema_: Annotated[Literal["backend-caps/engine-selection@1"], Field(alias="schema")]
    engine: str
    """The engine with its version."""
    machine: str
    """The GPU that the server is started on."""
    model: str
    """The model's name, or the path of its configuration."""
    default: str | None
    """The backend that the engine takes by itself; null where it starts with none."""
    why_none: str | None
    """Why it starts with none by itself; null where it does."""
    candidates: list[EngineCandidateDocument]
    """The default, then what else starts, what may, and what does not."""


class PlanDocument(Document):
    """What a server is configured by, and why."""

    schema_: Annotated[Literal["backend-caps/plan@1"], Field(alias="schema")]
    needs_cpu_seq_lens: bool
    """Whether `host_seq_lens` is `exact`; SGLang's name of it."""
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
    rules_unchecked_for: Annotated[str | None, LEFT_OUT] = None
    """The engine's version that the rules were not checked with; left out where they were."""
    fingerprint: str
    """A digest of the values, and of the backends, flags and rules that they come from."""
    engine: Annotated[str | None, LEFT_OUT] = None
    """The engine whose own backends were read for it, with its version; left out for none."""
    choices: Annotated[list[ChoiceDocument] | None, LEFT_OUT] = None
    """The choices where a flag is `auto`; left out where none is."""
    launch: Annotated[LaunchDocument | None, LEFT_OUT] = None
    """What the engine makes of the command line; left out where it was not followed."""

    @property
    def rules_words(self) -> str:
        """The rule set, and what it was not checked with."""
        if self.rules_unchecked_for is None:
            return self.rules
        return f"{self.rules}, which nobody checked with {self.rules_unchecked_for}"

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
    """Make a plan's document; `engine` names the one whose backends were read for it."""
    return PlanDocument.of(
        plan,
        schema_="backend-caps/plan@1",
        flips=[FlipDocument.of(f, remedies=[r.text for r in f.remedies]) for f in flips],
        rules=plan.rules.name,
        rules_unchecked_for=plan.rules.unchecked_for,
        engine=engine,
        choices=choice_documents(plan.choices) or None,
    )


def choice_documents(choices: Iterable[Choice]) -> list[ChoiceDocument]:
    """Make the documents of choices, flag by flag."""
    return [
        ChoiceDocument.of(
            choice,
            text=str(choice),
            chosen=None if choice.chosen is None else choice.chosen.name,
            candidates=[
                CandidateDocument.of(candidate, rank=rank if candidate.fits else None)
                for rank, candidate in enumerate(choice.candidates, start=1)
            ],
        )
        for choice in choices
    ]
