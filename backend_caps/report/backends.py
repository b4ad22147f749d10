"""The JSON of a report: installed backends, an engine's own, evidence, and a plan."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from backend_caps.capability.backend import Backend, EngineClass, Problem, Reading, Status
from backend_caps.capability.declaration import Declaration, Part
from backend_caps.capability.evidence import ClaimState, Standing
from backend_caps.capability.kind import UNDECLARED, Phase, Role
from backend_caps.capability.provenance import Origin
from backend_caps.capability.vocabulary import CAPABILITIES
from backend_caps.report.document import LEFT_OUT, TEXT, WRITTEN, Document, Written, is_none
from backend_caps.report.engine_plugins import EnginePluginDocument
from backend_caps.report.plans import PlanDocument, ProblemDocument

if TYPE_CHECKING:
    from backend_caps.engines.reading import EngineReading

NO_STANDINGS: Mapping[str, Standing] = MappingProxyType({})
"""No evidence of anything."""
DEPENDS = "depends"
"""The value where only conditions state one."""
Known = Annotated[Literal["verified", "stale", "failed", "not checked"], WRITTEN]
"""The state of a claim by the conformance kit's evidence."""
StatedOrigin = Annotated[
    Literal["declared", "conditional", "undeclared", "inherited", "not-known"], WRITTEN
]
"""How a statement's value came to be; `not-known` where the source was not understood."""
_NO_CLASS = EngineClass(path="")
"""The class of a backend that was not read from an engine's class."""


class EngineRuleDocument(Document):
    """What an engine's flags force, whatever its backends say."""

    name: str
    """What a cause calls it."""
    reason: str
    """Why, with the place in the engine's source."""
    given: Annotated[str, TEXT]
    """The condition, in words."""


class EngineDocument(Document):
    """One version of an engine, read without importing it."""

    name: Literal["sglang", "vllm"]
    """The engine."""
    version: str | None
    """Its version; null where the source does not say."""
    source: str
    """Where it was read: a folder, a wheel's file name, or `installed`."""
    rules: list[EngineRuleDocument]
    """What its flags force; empty where its rules are not known."""
    num_files: int
    """Python files of the engine."""
    num_parsed: int
    """Those of them that had to be parsed."""


class ReadingDocument(Document):
    """The value that an engine's source gives one of its own flags."""

    value: Written
    """The value; null where it depends on a condition, or is not stated."""
    origin: StatedOrigin
    """How its value came to be."""
    words: str
    """The words of the source."""
    declared_at: Annotated[str | None, LEFT_OUT] = None
    """`file:line` of the statement."""
    inherited_from: Annotated[str | None, LEFT_OUT] = None
    """The class that states it, where this one does not."""


class PartDocument(Document):
    """A class that a name of an engine may stand for."""

    name: str
    """The class."""
    roles: Annotated[list[str] | None, LEFT_OUT] = None
    """The roles that it takes; left out where it takes all."""
    phases: Annotated[list[str] | None, LEFT_OUT] = None
    """The phases that it takes; left out where it takes all."""
    given: Annotated[str | None, LEFT_OUT] = None
    """The condition, in words; left out where there is none."""


class ChangeDocument(Document):
    """A change since the kit's run."""

    what: str
    """`backend-caps`, `torch`, `triton`, `the distribution`, `source`, `declaration` or `the
    device`."""
    was: str | None
    """What it was: a version, a digest or a device."""
    now: str | None
    """What it is; null where that is not known."""


class EvidenceDocument(Document):
    """The evidence that the conformance kit wrote beside an implementation."""

    date: Annotated[str | None, LEFT_OUT] = None
    """The day of the run; left out, as what follows, where the file is no evidence."""
    kit_version: Annotated[str | None, LEFT_OUT] = None
    """The version of backend-caps that it ran with."""
    torch: Annotated[str | None, LEFT_OUT] = None
    """The version of torch that it ran with."""
    device: Annotated[str | None, LEFT_OUT] = None
    """The type of the device that it ran on."""
    num_seeds: Annotated[int | None, LEFT_OUT] = None
    """How often each scenario was drawn."""
    failed: Annotated[list[str] | None, LEFT_OUT] = None
    """The checks that failed; left out where none did."""
    changes: list[ChangeDocument]
    """What has changed since; empty where the evidence is fresh."""
    problem: Annotated[str | None, LEFT_OUT] = None
    """Why the file that was found is no evidence."""


class ConditionDocument(Document):
    """A value under a condition."""

    given: Annotated[str, TEXT]
    """The condition, in words."""
    value: Written
    """The value under it."""
    reason: str
    """Why, in the author's words."""


class CapabilityDocument(Document):
    """The statement of a backend on one capability."""

    value: Written
    """The stated value; `depends` where only conditions state one, `undeclared` where nothing does.
    What an engine's class only inherits is shown as in the source, and counts as undeclared."""
    origin: StatedOrigin
    """How the value came to be; `conditional` where an engine's class depends on something."""
    when: Annotated[list[ConditionDocument] | None, LEFT_OUT] = None
    """The values under conditions."""
    words: Annotated[str | None, LEFT_OUT] = None
    """The words of an engine's source, where the backend was read from one."""
    declared_at: Annotated[str | None, LEFT_OUT] = None
    """`file:line` of those words."""
    inherited_from: Annotated[str | None, LEFT_OUT] = None
    """The engine's class that states it, where this one does not."""
    evidence: Annotated[Known | None, LEFT_OUT] = None
    """The claim's state by the conformance kit's evidence; left out where there is none."""


class BackendDocument(Document):
    """One claim to a backend's name."""

    name: str
    """The name that flags use, or that of an engine's class."""
    status: Annotated[Literal["ok", "broken", "conflict", "skipped"], WRITTEN]
    """The outcome of reading its declaration."""
    distribution: str | None
    """The distribution that ships it."""
    version: str | None
    """The distribution's version."""
    declared_at: str | None
    """`file:line` of the declaration, or of the entry point where it was not read."""
    class_: Annotated[str | None, Field(alias="class", exclude_if=is_none)] = None
    """`package.module.Class` of an engine's class; left out for other backends."""
    registered_as: Annotated[list[str] | None, LEFT_OUT] = None
    """The names that flags use for an engine's class."""
    parts: Annotated[list[str] | None, LEFT_OUT] = None
    """The backends that a composite hands its uses to."""
    classes: Annotated[list[PartDocument] | None, LEFT_OUT] = None
    """The classes that an engine's name may stand for; left out for other backends."""
    composite: Annotated[str | None, LEFT_OUT] = None
    """How an engine's wrapper makes its answer from its children's."""
    adapters: Annotated[dict[str, str] | None, LEFT_OUT] = None
    """By engine, the function that makes the backend one of the engine's own; left out for none."""
    attributes: Annotated[dict[str, ReadingDocument] | None, LEFT_OUT] = None
    """An engine's own flags that are no capability here, by the engine's name."""
    capabilities: dict[str, CapabilityDocument]
    """Its statements by capability; empty where the declaration was not read."""
    evidence: Annotated[EvidenceDocument | None, LEFT_OUT] = None
    """What the conformance kit wrote beside its implementation; left out where there is none."""
    problems: list[ProblemDocument]
    """What is wrong with it."""

    def states(self, capability: str) -> bool:
        """Return whether the backend states a capability, even under a condition."""
        stated = self.capabilities.get(capability)
        return stated is not None and (stated.origin != "undeclared" or stated.when is not None)


class ReportDocument(Document):
    """What is installed, and the plan for a server where flags were given."""

    schema_: Annotated[Literal["backend-caps/report@1"], Field(alias="schema")]
    engine: Annotated[EngineDocument | None, LEFT_OUT] = None
    """The engine whose own backends were read; left out for none."""
    plugins: Annotated[list[EnginePluginDocument] | None, LEFT_OUT] = None
    """The distributions that extend the engine by its own entry points; left out for none."""
    backends: list[BackendDocument]
    """Every claim to a backend's name."""
    problems: list[ProblemDocument]
    """Problems of no single backend."""
    plan: PlanDocument | None
    """The plan; null where no server flags were given."""


def report_document(
    backends: Iterable[Backend],
    problems: Iterable[Problem],
    plan: PlanDocument | None,
    standings: Mapping[str, Standing] = NO_STANDINGS,
    *,
    reading: EngineReading | None = None,
) -> ReportDocument:
    """Make a report's document of backends, their evidence, and a plan.

    Args:
        backends: every claim to a backend's name.
        problems: those of no single backend.
        plan: for the server flags that were given.
        standings: by backend, how its evidence stands.
        reading: the engine that was read, whose engines_own backends are among `backends`.
    """
    engines_own, engine = {}, None
    if reading is not None:
        engines_own = {backend.name: backend for backend in reading.backends}
        rules = () if reading.rules is None else reading.rules.rules
        engine = EngineDocument.of(reading, name=reading.engine, rules=rules)
    return ReportDocument(
        schema_="backend-caps/report@1",
        engine=engine,
        plugins=(None if reading is None else reading.plugins) or None,
        backends=[
            backend_document(backend, is_engines=True)
            if engines_own.get(backend.name) is backend
            else backend_document(backend, standings.get(backend.name))
            for backend in backends
        ],
        problems=tuple(problems),
        plan=plan,
    )


def backend_document(
    backend: Backend, standing: Standing | None = None, *, is_engines: bool = False
) -> BackendDocument:
    """Make a backend's document: its declaration, evidence and problems.

    Args:
        backend: one claim to a name.
        standing: how its evidence stands; it counts only where the declaration was read.
        is_engines: whether it was read from an engine's source: a class, or a name of classes.
    """
    declaration, read = backend.declaration, backend.engine_class or _NO_CLASS
    standing = standing if backend.status is Status.OK else None
    parts = () if declaration is None else declaration.parts
    named = [part.backend for part in parts] or None
    is_name = is_engines and read is _NO_CLASS
    return BackendDocument.of(
        backend.source,
        name=backend.name,
        status=backend.status,
        class_=read.path or None,
        registered_as=read.registered_as or None,
        parts=list(dict.fromkeys(named or ())) if is_name else named,
        classes=[_part(part) for part in parts] if is_name else None,
        composite=read.composite,
        adapters=(declaration.adapters if declaration else None) or None,
        attributes=read.attributes or None,
        capabilities={
            name: _capability(declaration, name, standing, read.readings.get(name))
            for name in CAPABILITIES
            if declaration is not None
        },
        evidence=None if standing is None else _evidence(standing),
        problems=backend.problems,
    )


def _part(part: Part) -> PartDocument:
    return PartDocument(
        name=part.backend,
        roles=None if part.roles == set(Role) else [r.value for r in Role if r in part.roles],
        phases=None if part.phases == set(Phase) else [p.value for p in Phase if p in part.phases],
        given=None if part.given is None else str(part.given),
    )


def _capability(
    declaration: Declaration, name: str, standing: Standing | None, reading: Reading | None
) -> CapabilityDocument:
    stated = declaration.capabilities.stated().get(name, UNDECLARED)
    conditions = [
        ConditionDocument.of(when, value=when.capabilities.stated()[name])
        for when in declaration.conditions
        if name in when.capabilities.stated()
    ]
    is_declared = stated is not UNDECLARED
    state = ClaimState.DECLARED
    if standing is not None and (is_declared or conditions):
        state = standing.state(name)[0]
    fields = {
        "value": stated,
        "when": conditions or None,
        "evidence": None if state is ClaimState.DECLARED else state,
    }
    if reading is None:
        origin = Origin.DECLARED if is_declared else Origin.UNDECLARED
        return CapabilityDocument.model_validate({"origin": origin, **fields})
    if not is_declared and (reading.value is not None or reading.origin is not Origin.UNDECLARED):
        # The source's value is shown, though it does not count.
        fields["value"] = DEPENDS if reading.value is None else reading.value
    return CapabilityDocument.of(reading, **fields)


def _evidence(standing: Standing) -> EvidenceDocument:
    evidence = standing.evidence
    if evidence is None:
        return EvidenceDocument(changes=[], problem=standing.problem)
    return EvidenceDocument(
        date=evidence.date.isoformat(),
        kit_version=evidence.kit_version,
        torch=evidence.versions.torch,
        device=evidence.device.type,
        num_seeds=len(evidence.effort.seeds),
        failed=[check.code for check in standing.failed_checks] or None,
        changes=standing.changes,
    )
