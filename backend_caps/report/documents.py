"""The JSON of a plan and of a report: what crosses the edge, with a published schema."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from types import MappingProxyType
from typing import Annotated, Literal

from pydantic import Field, JsonValue

from backend_caps.capability.backend import Backend, Problem, Status
from backend_caps.capability.declaration import Declaration
from backend_caps.capability.evidence import Standing
from backend_caps.capability.provenance import BY_HAND
from backend_caps.capability.scale import UNDECLARED
from backend_caps.capability.sizes import Conflict, Exact, MultipleOf, OneOf, Unchecked
from backend_caps.capability.vocabulary import CAPABILITIES, NO_LIMIT
from backend_caps.report.document import LEFT_OUT, Document, is_none
from backend_caps.report.engine_documents import EngineDocument, PartDocument, ReadingDocument
from backend_caps.report.evidence_documents import (
    EvidenceDocument,
    Known,
    evidence_document,
    known_of,
)
from backend_caps.report.selection_documents import ChoiceDocument, choice_documents
from backend_caps.resolution.flips import Flip
from backend_caps.resolution.plan import Cause, Plan, Resolved

NO_STANDINGS: Mapping[str, Standing] = MappingProxyType({})
"""There is no evidence of anything."""


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

    kind: Literal["backend", "rule", "override", "engine"]
    """Who it names."""
    name: str
    """The backend, the rule, or the overridden capability."""
    role: str | None
    """The role that a backend is used in."""
    phase: str | None
    """The phase that it counts in."""
    value: JsonValue
    """What it contributes."""
    reason: str
    """Why, in the words of the declaration or the rule."""
    origin: str
    """How its value came to be."""
    source: str | None
    """Where a backend is declared: distribution, version, file and line; null if nowhere."""
    via: Annotated[tuple[str, ...] | None, LEFT_OUT] = None
    """The composites of which the backend is a part, outermost first, where there are any."""
    rank: Annotated[int | None, LEFT_OUT] = None
    """The rank it comes from, where plans of several are joined."""
    host: Annotated[str | None, LEFT_OUT] = None
    """That rank's machine."""


class ValueDocument(Document):
    """One value of a plan."""

    value: JsonValue
    """The join of every cause's; no limit is null."""
    effect: str
    """What it does on this server, or `no effect: ` and why."""
    causes: list[CauseDocument]
    """Every contribution, the deciding ones first."""


class FlipDocument(Document):
    """Changes that together lead to a better value."""

    capability: str
    """The capability whose value gets better."""
    phase: str | None
    """The phase of the value; null for the server's."""
    value: JsonValue
    """What it is."""
    becomes: JsonValue
    """What it becomes with all the remedies, as found by resolving once more."""
    remedies: list[str]
    """The changes; all of them together."""


class PlanDocument(Document):
    """What a server is configured by, and why."""

    schema_: Annotated[Literal["backend-caps/plan@1"], Field(alias="schema")]
    needs_cpu_seq_lens: bool
    """Whether `host_seq_lens` is `exact`: SGLang's question."""
    server: dict[str, ValueDocument]
    """The capabilities with one value for the server."""
    phases: dict[str, dict[str, ValueDocument]]
    """For each phase, the capabilities with a value of their own there."""
    flips: list[FlipDocument]
    """What would lead to better values."""
    problems: list[ProblemDocument]
    """What is wrong with the plan."""
    policy: Literal["strict", "warn", "quiet"]
    """What is done about the problems: refused, shown, or only kept here."""
    rules: str
    """The rule set."""
    fingerprint: str
    """A digest of the values: equal plans configure equal servers."""
    engine: Annotated[str | None, LEFT_OUT] = None
    """The engine whose own backends were read for it, with its version; left out for none."""
    choices: Annotated[list[ChoiceDocument] | None, LEFT_OUT] = None
    """What was chosen where a flag says `auto`; left out where none does."""


class ConditionDocument(Document):
    """A value under a condition."""

    given: str
    """The condition, in words."""
    value: JsonValue
    """What holds then."""
    reason: str
    """Why, in the author's words."""


class CapabilityDocument(Document):
    """What a backend says of one capability."""

    value: JsonValue
    """What it states; `depends` where only conditions do, `undeclared` where nobody does. What an
    engine's class only inherits is here as the source has it, and counts as undeclared."""
    origin: Literal["declared", "conditional", "undeclared", "inherited"]
    """Whether anybody stated it; `conditional` where an engine's class depends on something."""
    when: Annotated[list[ConditionDocument] | None, LEFT_OUT] = None
    """What holds under conditions."""
    words: Annotated[str | None, LEFT_OUT] = None
    """What an engine's source says, where the backend was read from one."""
    declared_at: Annotated[str | None, LEFT_OUT] = None
    """`file:line` of those words."""
    inherited_from: Annotated[str | None, LEFT_OUT] = None
    """The engine's class that states it, where this one does not."""
    evidence: Annotated[Known | None, LEFT_OUT] = None
    """What the conformance kit's evidence says; left out where there is none of it."""


class BackendDocument(Document):
    """One claim to a backend's name."""

    name: str
    """The name that flags use, or that of an engine's class."""
    status: Literal["ok", "broken", "conflict", "skipped"]
    """What became of its declaration."""
    distribution: str | None
    """What ships it."""
    version: str | None
    """The distribution's version."""
    declared_at: str | None
    """`file:line` of the declaration, or of the entry point where it was not read."""
    class_: Annotated[str | None, Field(alias="class", exclude_if=is_none)] = None
    """`package.module.Class` of an engine's class; left out for what is none."""
    registered_as: Annotated[list[str] | None, LEFT_OUT] = None
    """The names that flags use for an engine's class."""
    parts: Annotated[list[str] | None, LEFT_OUT] = None
    """The backends that a composite hands its uses to."""
    classes: Annotated[list[PartDocument] | None, LEFT_OUT] = None
    """The classes that a name of an engine's may stand for; left out for what is no such name."""
    composite: Annotated[str | None, LEFT_OUT] = None
    """How an engine's wrapper makes its answer from its children's."""
    adapters: Annotated[dict[str, str] | None, LEFT_OUT] = None
    """By engine, what makes the backend one of that engine's own; left out where nothing does."""
    attributes: Annotated[dict[str, ReadingDocument] | None, LEFT_OUT] = None
    """An engine's own flags that are no capability here, by the engine's name."""
    capabilities: dict[str, CapabilityDocument]
    """What it says; empty where the declaration was not read."""
    evidence: Annotated[EvidenceDocument | None, LEFT_OUT] = None
    """What the conformance kit left beside its implementation; left out where that is nothing."""
    problems: list[ProblemDocument]
    """What is wrong with it."""


class ReportDocument(Document):
    """What is installed, and the plan for a server where flags were given."""

    schema_: Annotated[Literal["backend-caps/report@1"], Field(alias="schema")]
    engine: Annotated[EngineDocument | None, LEFT_OUT] = None
    """The engine whose own backends were read; left out for none."""
    backends: list[BackendDocument]
    """Every claim to a backend's name."""
    problems: list[ProblemDocument]
    """What no single backend can be blamed for."""
    plan: PlanDocument | None
    """The plan; null where no server flags were given."""


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
    return PlanDocument(
        schema_="backend-caps/plan@1",
        needs_cpu_seq_lens=plan.needs_cpu_seq_lens,
        server={name: _value(own) for name, own in plan.server.items()},
        phases={
            phase.value: {name: _value(own) for name, own in values.items()}
            for phase, values in plan.phases.items()
        },
        flips=[_flip(flip) for flip in flips],
        problems=problem_documents(plan.problems),
        policy=plan.policy.value,
        rules=plan.rules.name,
        fingerprint=plan.fingerprint,
        engine=engine,
        choices=choice_documents(plan.choices) or None,
    )


def report_document(
    backends: Iterable[Backend],
    problems: Iterable[Problem],
    plan: PlanDocument | None,
    standings: Mapping[str, Standing] = NO_STANDINGS,
) -> ReportDocument:
    """Write what is installed, how its claims stand, and a plan, as a report's document."""
    return ReportDocument(
        schema_="backend-caps/report@1",
        backends=[backend_document(each, standings.get(each.name)) for each in backends],
        problems=problem_documents(problems),
        plan=plan,
    )


def json_of(value: object) -> JsonValue:
    """Write a capability's value as JSON, in a stable order; no limit is null."""
    match value:
        case bool():
            return value
        case int():
            return None if value == NO_LIMIT else value
        case Enum():
            return str(value.value)
        case frozenset():
            return sorted(
                str(member.value) if isinstance(member, Enum) else member for member in value
            )
        case tuple():
            return [str(window) for window in value]
        case Exact() | MultipleOf() | OneOf() | Unchecked() | Conflict():
            return _json_of_sizes(value)
    raise AssertionError(f"no capability has the value {value!r}")


def _json_of_sizes(sizes: Exact | MultipleOf | OneOf | Unchecked | Conflict) -> JsonValue:
    match sizes:
        case Exact(size):
            return {"exact": size}
        case MultipleOf(size):
            return {"multiple_of": size}
        case OneOf(listed):
            return {"one_of": [*sorted(listed)]}
        case Unchecked(within):
            return {"unchecked": json_of(within)}
    return {"conflict": [*sizes.owners]}


def _value(own: Resolved) -> ValueDocument:
    return ValueDocument(
        value=json_of(own.value),
        effect=str(own.effect),
        causes=[_cause(cause) for cause in own.causes],
    )


def _cause(cause: Cause) -> CauseDocument:
    return CauseDocument(
        kind=cause.kind.value,
        name=cause.name,
        role=cause.role.value if cause.role else None,
        phase=cause.phase.value if cause.phase else None,
        value=json_of(cause.value),
        reason=cause.reason,
        origin=cause.origin.value,
        source=None if cause.source in {None, BY_HAND} else str(cause.source),
        via=cause.via or None,
        rank=cause.rank,
        host=cause.host,
    )


def _flip(flip: Flip) -> FlipDocument:
    return FlipDocument(
        capability=flip.capability,
        phase=flip.phase.value if flip.phase else None,
        value=json_of(flip.value),
        becomes=json_of(flip.becomes),
        remedies=[remedy.text for remedy in flip.remedies],
    )


def problem_documents(problems: Iterable[Problem]) -> list[ProblemDocument]:
    """Write what is wrong."""
    return [ProblemDocument(code=p.code, message=p.message, remedy=p.remedy) for p in problems]


def backend_document(backend: Backend, standing: Standing | None = None) -> BackendDocument:
    """Write what a backend declares, how that stands, and what is wrong with it."""
    declaration = backend.declaration
    standing = standing if backend.status is Status.OK else None
    parts = [part.backend for part in declaration.parts] if declaration else []
    adapters = dict(declaration.adapters) if declaration else {}
    return BackendDocument(
        name=backend.name,
        status=backend.status.value,
        distribution=backend.source.distribution,
        version=backend.source.version,
        declared_at=backend.source.declared_at,
        parts=parts or None,
        adapters=adapters or None,
        capabilities=_capabilities(declaration, standing) if declaration else {},
        evidence=None if standing is None else evidence_document(standing),
        problems=problem_documents(backend.problems),
    )


def _capabilities(
    declaration: Declaration, standing: Standing | None
) -> Mapping[str, CapabilityDocument]:
    return {name: _capability(declaration, name, standing) for name in CAPABILITIES}


def _capability(
    declaration: Declaration, name: str, standing: Standing | None
) -> CapabilityDocument:
    value = declaration.capabilities.stated().get(name, UNDECLARED)
    stated = [
        ConditionDocument(
            given=str(when.given),
            value=json_of(when.capabilities.stated()[name]),
            reason=when.reason,
        )
        for when in declaration.conditions
        if name in when.capabilities.stated()
    ]
    origin = "undeclared" if value is UNDECLARED else "declared"
    is_said = value is not UNDECLARED or stated
    return CapabilityDocument(
        value=json_of(value),
        origin=origin,
        when=stated or None,
        evidence=known_of(standing, name) if is_said else None,
    )
