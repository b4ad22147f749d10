"""What is installed and what was asked, as a file that is the same on every machine.

It holds no time, no host and no absolute path: two runs over the same releases write the same
bytes, so the file can stand in a repository and be compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath, PureWindowsPath
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, JsonValue, PlainSerializer, field_validator

from backend_caps.capability.backend import Backend, EngineClass, Problem, Reading, Status
from backend_caps.capability.declaration import Declaration
from backend_caps.capability.facts import Facts
from backend_caps.capability.fit import text_of
from backend_caps.capability.model import FrozenModel
from backend_caps.capability.provenance import Origin, Source
from backend_caps.capability.vocabulary import Capabilities
from backend_caps.engines.reading import EngineReading
from backend_caps.report.document import LEFT_OUT, json_text
from backend_caps.report.documents import CauseDocument, PlanDocument, ValueDocument
from backend_caps.report.plan_values import value_of
from backend_caps.resolution.flags import ServerFlags
from backend_caps.resolution.plan import Policy
from backend_caps.resolution.rules import Rule, RuleSet

_OF_THE_WORKING_DIRECTORY = "working-directory"
"""The problem of what was found only because of where the command was started."""


def _given(flags: ServerFlags) -> dict[str, JsonValue]:
    return {name: _json(value) for name, value in flags.given().items()}


def _json(value: object) -> JsonValue:
    assert value is None or isinstance(value, str | int), f"no flag has the value {value!r}"
    return value


GivenFlags = Annotated[ServerFlags, PlainSerializer(_given, return_type=dict[str, JsonValue])]
"""Server flags, written without those that were not given."""


class _Locked(FrozenModel):
    model_config = ConfigDict(validate_by_name=True, serialize_by_alias=True)


class LockedRequest(_Locked):
    """What was asked, so that it can be asked again."""

    flags: GivenFlags
    """The server flags that were given, by name."""
    facts: Facts
    """What was said of machine and model."""
    unsafe_override: Capabilities | None
    """The values that were put in place of the joined ones."""
    policy: Policy
    """What is done about the plan's problems."""
    rules: str | None
    """The rule set that was asked for; null for the engine's own."""
    engine: str | None
    """The engine whose source is read; null for none."""
    requires_evidence: Annotated[bool | None, LEFT_OUT] = None
    """True where what is not verified counts as undeclared; left out where it does not."""


class LockedEngine(_Locked):
    """The engine that was read."""

    name: str
    """`sglang` or `vllm`."""
    version: str | None
    """Its version; null where the source does not say."""

    @classmethod
    def of(cls, reading: EngineReading) -> LockedEngine:
        """Write which engine was read, and not where."""
        return cls(name=reading.engine, version=reading.version)


class LockedRules(_Locked):
    """The rule set, third parties' rules included."""

    name: str
    """Its name."""
    relays: tuple[str, ...]
    """The speculative algorithms whose steps overlap, sorted."""
    rules: tuple[Rule, ...]
    """The rules, in the set's order."""

    @classmethod
    def of(cls, rules: RuleSet) -> LockedRules:
        """Write a rule set."""
        return cls(name=rules.name, relays=tuple(sorted(rules.relays)), rules=rules.rules)


class LockedReading(_Locked):
    """What an engine's source says of one thing."""

    origin: Origin
    """How its value came to be."""
    words: str
    """The source's own words."""
    value: str | None
    """The value in words; null where it depends, or nobody stated it."""
    declared_at: str | None
    """`file:line`, relative to the folder that the engine is imported from."""
    inherited_from: str | None
    """The class that states it, where this one does not."""

    @classmethod
    def of(cls, reading: Reading) -> LockedReading:
        """Write a reading."""
        return cls(
            origin=reading.origin,
            words=reading.words,
            value=None if reading.value is None else text_of(reading.value),
            declared_at=reading.declared_at,
            inherited_from=reading.inherited_from,
        )

    def reading(self) -> Reading:
        """Return the reading, its value in words."""
        return Reading(
            origin=self.origin,
            words=self.words,
            value=self.value,
            declared_at=self.declared_at,
            inherited_from=self.inherited_from,
        )


class LockedClass(_Locked):
    """The class of an engine that a backend was read from."""

    path: str
    """`package.module.Class`."""
    registered_as: tuple[str, ...]
    """The names that flags use for it, sorted."""
    readings: dict[str, LockedReading]
    """By capability, what the source says."""
    attributes: dict[str, LockedReading]
    """By the engine's own name, flags that have no capability of ours."""
    composite: str | None
    """How a wrapper makes its answer from its children's, where it does."""

    @classmethod
    def of(cls, read: EngineClass) -> LockedClass:
        """Write a class."""
        return cls(
            path=read.path,
            registered_as=tuple(sorted(read.registered_as)),
            readings=_locked_readings(read.readings),
            attributes=_locked_readings(read.attributes),
            composite=read.composite,
        )

    def engine_class(self) -> EngineClass:
        """Return the class."""
        return EngineClass(
            path=self.path,
            registered_as=self.registered_as,
            readings={name: said.reading() for name, said in self.readings.items()},
            attributes={name: said.reading() for name, said in self.attributes.items()},
            composite=self.composite,
        )


class LockedBackend(_Locked):
    """One claim to a backend's name."""

    name: str
    """The name that flags use, or an engine's class."""
    status: Status
    """What became of its declaration."""
    distribution: str | None
    """What ships it."""
    version: str | None
    """The distribution's version."""
    declared_at: str | None
    """`file:line` in an engine's source; null for a plugin, whose files lie elsewhere on each
    machine."""
    problems: tuple[str, ...]
    """The codes of what is wrong with it, sorted."""
    declaration: Declaration | None
    """What it says of itself; null where that was not read."""
    engine_class: LockedClass | None
    """Where it was read from an engine's source."""

    @classmethod
    def of(cls, backend: Backend) -> LockedBackend:
        """Write a backend."""
        read = backend.engine_class
        return cls(
            name=backend.name,
            status=backend.status,
            distribution=backend.source.distribution,
            version=backend.source.version,
            declared_at=_portable(backend.source.declared_at),
            problems=_codes(backend.problems),
            declaration=backend.declaration,
            engine_class=None if read is None else LockedClass.of(read),
        )

    def backend(self) -> Backend:
        """Return the backend; of its problems only the codes are known."""
        read = self.engine_class
        return Backend(
            name=self.name,
            status=self.status,
            source=Source(
                distribution=self.distribution,
                version=self.version,
                declared_at=self.declared_at,
            ),
            declaration=self.declaration,
            problems=tuple(Problem(code=code, message="", remedy="") for code in self.problems),
            engine_class=None if read is None else read.engine_class(),
        )


class LockDocument(_Locked):
    """What is installed, and the plan for a server where flags were given."""

    schema_: Annotated[Literal["backend-caps/lock@1"], Field(alias="schema")]
    request: LockedRequest
    """What was asked."""
    engine: LockedEngine | None
    """The engine that was read; null for none."""
    rules: LockedRules
    """What the server's flags may force."""
    backends: tuple[LockedBackend, ...]
    """Every claim to a backend's name, sorted."""
    problems: tuple[str, ...]
    """The codes of what no single backend can be blamed for, sorted."""
    plan: PlanDocument | None
    """The plan; null where no server flags were given."""

    @field_validator("plan")
    @classmethod
    def _holds_values(cls, plan: PlanDocument | None) -> PlanDocument | None:
        """Refuse a plan whose values nobody can compare."""
        own = () if plan is None else (plan.server, *plan.phases.values())
        for name, value in ((name, value) for values in own for name, value in values.items()):
            value_of(name, value.value)
        return plan

    def text(self) -> str:
        """Write the file; what says nothing, such as a capability undeclared, is left out."""
        return json_text(self, indent=2, exclude_defaults=True) + "\n"


def lock_document(
    request: LockedRequest,
    *,
    backends: Iterable[Backend],
    problems: Iterable[Problem],
    rules: RuleSet,
    reading: EngineReading | None = None,
    plan: PlanDocument | None = None,
) -> LockDocument:
    """Write down what is installed, what was asked, and the plan.

    What was found only because of the working directory is left out.

    Args:
        request: what was asked.
        backends: every claim to a backend's name, in the registry's order.
        problems: what no single backend can be blamed for.
        rules: the rule set, third parties' rules included.
        reading: the engine that was read.
        plan: the plan for the request's flags.
    """
    installed = [each for each in backends if not _is_of_the_working_directory(each.problems)]
    return LockDocument(
        schema_="backend-caps/lock@1",
        request=request,
        engine=None if reading is None else LockedEngine.of(reading),
        rules=LockedRules.of(rules),
        backends=tuple(map(LockedBackend.of, installed)),
        problems=_codes(p for p in problems if not _is_of_the_working_directory([p])),
        plan=None if plan is None else _portable_plan(plan),
    )


def _is_of_the_working_directory(problems: Iterable[Problem]) -> bool:
    return any(found.code == _OF_THE_WORKING_DIRECTORY for found in problems)


def _codes(problems: Iterable[Problem]) -> tuple[str, ...]:
    return tuple(sorted(found.code for found in problems))


def _locked_readings(readings: Mapping[str, Reading]) -> dict[str, LockedReading]:
    return {name: LockedReading.of(readings[name]) for name in sorted(readings)}


def _portable(place: str | None) -> str | None:
    """Leave out a place that only this machine has."""
    if place is None or PurePosixPath(place).is_absolute() or PureWindowsPath(place).is_absolute():
        return None
    return place


def _portable_plan(plan: PlanDocument) -> PlanDocument:
    server = {name: _portable_value(value) for name, value in plan.server.items()}
    phases = {
        phase: {name: _portable_value(value) for name, value in values.items()}
        for phase, values in plan.phases.items()
    }
    return plan.model_copy(update={"server": server, "phases": phases})


def _portable_value(value: ValueDocument) -> ValueDocument:
    return value.model_copy(update={"causes": [_portable_cause(cause) for cause in value.causes]})


def _portable_cause(cause: CauseDocument) -> CauseDocument:
    """Keep of `acme 1.0, /a/folder/caps.py:3` what is the same everywhere."""
    if cause.source is None:
        return cause
    shipped, _, place = cause.source.rpartition(", ")
    told = ", ".join(part for part in (shipped, _portable(place)) if part)
    return cause.model_copy(update={"source": told or None})
