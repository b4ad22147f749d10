"""The JSON of a plan and of a report: what crosses the edge, with a published schema."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from backend_caps.capability.backend import Backend, Problem
from backend_caps.capability.declaration import Declaration
from backend_caps.capability.provenance import BY_HAND
from backend_caps.capability.scale import UNDECLARED
from backend_caps.capability.sizes import Conflict, Exact, MultipleOf, OneOf, Unchecked
from backend_caps.capability.vocabulary import CAPABILITIES, NO_LIMIT
from backend_caps.resolution.flips import Flip
from backend_caps.resolution.plan import Cause, Plan, Resolved


def _is_none(value: object) -> bool:
    return value is None


_LEFT_OUT = Field(exclude_if=_is_none)
"""A key that is there only where it has something to say."""


class _Document(BaseModel):
    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        validate_by_name=True,
        serialize_by_alias=True,
        defer_build=True,
    )


class ProblemDocument(_Document):
    """What is wrong."""

    code: str
    """Stable; docs/reference/problems.md lists them."""
    message: str
    """What is wrong, with the values."""
    remedy: str
    """What to do."""


class CauseDocument(_Document):
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
    rank: Annotated[int | None, _LEFT_OUT] = None
    """The rank it comes from, where plans of several are joined."""


class ValueDocument(_Document):
    """One value of a plan."""

    value: JsonValue
    """The join of every cause's; no limit is null."""
    effect: str
    """What it does on this server, or `no effect: ` and why."""
    causes: list[CauseDocument]
    """Every contribution, the deciding ones first."""


class FlipDocument(_Document):
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


class PlanDocument(_Document):
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


class ConditionDocument(_Document):
    """A value under a condition."""

    given: str
    """The condition, in words."""
    value: JsonValue
    """What holds then."""
    reason: str
    """Why, in the author's words."""


class CapabilityDocument(_Document):
    """What a backend says of one capability."""

    value: JsonValue
    """What it states, or `undeclared`."""
    origin: Literal["declared", "undeclared", "inherited"]
    """Whether anybody stated it."""
    when: Annotated[list[ConditionDocument] | None, _LEFT_OUT] = None
    """What holds under conditions."""


class BackendDocument(_Document):
    """One claim to a backend's name."""

    name: str
    """The name that flags use."""
    status: Literal["ok", "broken", "conflict", "skipped"]
    """What became of its declaration."""
    distribution: str | None
    """What ships it."""
    version: str | None
    """The distribution's version."""
    declared_at: str | None
    """`file:line` of the declaration, or of the entry point where it was not read."""
    parts: Annotated[list[str] | None, _LEFT_OUT] = None
    """The backends that a composite hands its uses to."""
    capabilities: dict[str, CapabilityDocument]
    """What it says; empty where the declaration was not read."""
    problems: list[ProblemDocument]
    """What is wrong with it."""


class ReportDocument(_Document):
    """What is installed, and the plan for a server where flags were given."""

    schema_: Annotated[Literal["backend-caps/report@1"], Field(alias="schema")]
    backends: list[BackendDocument]
    """Every claim to a backend's name."""
    problems: list[ProblemDocument]
    """What no single backend can be blamed for."""
    plan: PlanDocument | None
    """The plan; null where no server flags were given."""


class StepDocument(_Document):
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
    """What crossed to the host for it."""


class RelayDocument(_Document):
    """A plan, and some steps relayed through the FutureMap that it configures."""

    schema_: Annotated[Literal["backend-caps/relay@1"], Field(alias="schema")]
    device: str
    """The torch device of the FutureMap."""
    plan: PlanDocument
    """What configured it."""
    steps: list[StepDocument]
    """What was relayed."""


def plan_document(plan: Plan, flips: Iterable[Flip]) -> PlanDocument:
    """Write a plan as its document."""
    return PlanDocument(
        schema_="backend-caps/plan@1",
        needs_cpu_seq_lens=plan.needs_cpu_seq_lens,
        server={name: _value(own) for name, own in plan.server.items()},
        phases={
            phase.value: {name: _value(own) for name, own in values.items()}
            for phase, values in plan.phases.items()
        },
        flips=[_flip(flip) for flip in flips],
        problems=_problems(plan.problems),
        policy=plan.policy.value,
        rules=plan.rules.name,
        fingerprint=plan.fingerprint,
    )


def report_document(
    backends: Iterable[Backend], problems: Iterable[Problem], plan: PlanDocument | None
) -> ReportDocument:
    """Write what is installed, and a plan, as a report's document."""
    return ReportDocument(
        schema_="backend-caps/report@1",
        backends=[_backend(backend) for backend in backends],
        problems=_problems(problems),
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
        rank=cause.rank,
    )


def _flip(flip: Flip) -> FlipDocument:
    return FlipDocument(
        capability=flip.capability,
        phase=flip.phase.value if flip.phase else None,
        value=json_of(flip.value),
        becomes=json_of(flip.becomes),
        remedies=[remedy.text for remedy in flip.remedies],
    )


def _problems(problems: Iterable[Problem]) -> list[ProblemDocument]:
    return [ProblemDocument(code=p.code, message=p.message, remedy=p.remedy) for p in problems]


def _backend(backend: Backend) -> BackendDocument:
    declaration = backend.declaration
    parts = [part.backend for part in declaration.parts] if declaration else []
    return BackendDocument(
        name=backend.name,
        status=backend.status.value,
        distribution=backend.source.distribution,
        version=backend.source.version,
        declared_at=backend.source.declared_at,
        parts=parts or None,
        capabilities=_capabilities(declaration) if declaration else {},
        problems=_problems(backend.problems),
    )


def _capabilities(declaration: Declaration) -> Mapping[str, CapabilityDocument]:
    return {name: _capability(declaration, name) for name in CAPABILITIES}


def _capability(declaration: Declaration, name: str) -> CapabilityDocument:
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
    return CapabilityDocument(value=json_of(value), origin=origin, when=stated or None)
