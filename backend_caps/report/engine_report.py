"""A report on an engine's own backends, from what was read of its source to its document."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Literal, TypeVar

from pydantic import JsonValue

from backend_caps.capability.backend import Backend, EngineClass, Reading
from backend_caps.capability.declaration import Part
from backend_caps.capability.evidence import Standing
from backend_caps.capability.kind import Phase, Role
from backend_caps.capability.provenance import Origin
from backend_caps.capability.status import Problem
from backend_caps.report.document import Document
from backend_caps.report.documents import (
    NO_STANDINGS,
    BackendDocument,
    CapabilityDocument,
    PlanDocument,
    ReportDocument,
    backend_document,
    json_of,
    report_document,
)
from backend_caps.report.engine_documents import (
    EngineDocument,
    EngineRuleDocument,
    PartDocument,
    ReadingDocument,
)

if TYPE_CHECKING:
    from backend_caps.engines.reading import EngineReading

DEPENDS = "depends"
"""The value where only conditions state one."""
_Stated = Literal["declared", "conditional", "undeclared", "inherited"]
_ORIGINS: Mapping[Origin, _Stated] = {
    Origin.DECLARED: "declared",
    Origin.CONDITIONAL: "conditional",
    Origin.INHERITED: "inherited",
    Origin.UNDECLARED: "undeclared",
}
_AnyDocument = TypeVar("_AnyDocument", bound=Document)


def engine_report_document(
    reading: EngineReading,
    backends: Iterable[Backend],
    problems: Iterable[Problem],
    plan: PlanDocument | None,
    standings: Mapping[str, Standing] = NO_STANDINGS,
) -> ReportDocument:
    """Write what an engine's source says, the plugins beside it, and a plan, as a document."""
    own = {backend.name: backend for backend in reading.backends}
    told = [
        _own(each)
        if own.get(each.name) is each
        else backend_document(each, standings.get(each.name))
        for each in backends
    ]
    report = report_document((), problems, plan)
    return _with(report, engine=_engine(reading), backends=told)


def _with(document: _AnyDocument, **changes: object) -> _AnyDocument:
    return type(document).model_validate({**dict(document), **changes})


def _engine(reading: EngineReading) -> EngineDocument:
    rules = () if reading.rules is None else reading.rules.rules
    return EngineDocument.model_validate(
        {
            "name": reading.engine,
            "version": reading.version,
            "source": reading.source,
            "rules": [
                EngineRuleDocument(name=rule.name, reason=rule.reason, given=str(rule.given))
                for rule in rules
            ],
            "num_files": reading.num_files,
            "num_parsed": reading.num_parsed,
        }
    )


def _own(backend: Backend) -> BackendDocument:
    document = backend_document(backend)
    if backend.engine_class is not None:
        return _of_class(document, backend.engine_class)
    parts = () if backend.declaration is None else backend.declaration.parts
    named = list(dict.fromkeys(part.backend for part in parts))
    return _with(document, parts=named, classes=[_part(part) for part in parts])


def _of_class(document: BackendDocument, read: EngineClass) -> BackendDocument:
    capabilities = {
        name: _capability(said, read.readings.get(name))
        for name, said in document.capabilities.items()
    }
    attributes = {name: _attribute(reading) for name, reading in read.attributes.items()}
    return _with(
        document,
        class_=read.path,
        registered_as=list(read.registered_as) or None,
        composite=read.composite,
        attributes=attributes or None,
        capabilities=capabilities,
    )


def _capability(said: CapabilityDocument, reading: Reading | None) -> CapabilityDocument:
    if reading is None:
        return said
    return _with(
        said,
        value=_value(said, reading),
        origin=_ORIGINS[reading.origin],
        words=reading.words,
        declared_at=reading.declared_at,
        inherited_from=reading.inherited_from,
    )


def _value(said: CapabilityDocument, reading: Reading) -> JsonValue:
    """Take the declaration's value; else what the source has, though it does not count."""
    if said.origin == "declared":
        return said.value
    if reading.value is None and reading.origin is not Origin.UNDECLARED:
        return DEPENDS
    return said.value if reading.value is None else _json_of(reading.value)


def _attribute(reading: Reading) -> ReadingDocument:
    return ReadingDocument(
        value=_json_of(reading.value),
        origin=_ORIGINS[reading.origin],
        words=reading.words,
        declared_at=reading.declared_at,
        inherited_from=reading.inherited_from,
    )


def _json_of(value: object) -> JsonValue:
    """Write a value as the source has it: also one that no capability can have."""
    return value if value is None or isinstance(value, str | float) else json_of(value)


def _part(part: Part) -> PartDocument:
    return PartDocument(
        name=part.backend,
        roles=None if part.roles == set(Role) else [r.value for r in Role if r in part.roles],
        phases=None if part.phases == set(Phase) else [p.value for p in Phase if p in part.phases],
        given=None if part.given is None else str(part.given),
    )
