"""What a rank says at length, where not all say the same: its fields, and its plan's values."""

from __future__ import annotations

import json
from typing import Self

from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError

from backend_caps.capability.kind import Phase, Role
from backend_caps.capability.provenance import Origin, Source
from backend_caps.report.document import json_of, legible, value_of
from backend_caps.resolution.plan import Cause, CauseKind, Plan, Resolved
from backend_caps.startup.agreement.statement import VERSION, Statement, Treatment


class Contribution(BaseModel):
    """A cause as it crosses: without the path of a declaration, which is a machine's own."""

    model_config = ConfigDict(frozen=True)

    kind: CauseKind
    name: str
    role: Role | None
    phase: Phase | None
    value: str
    """As JSON."""
    reason: str
    origin: Origin
    distribution: str | None
    version: str | None
    via: tuple[str, ...]

    @classmethod
    def of(cls, cause: Cause) -> Self:
        """Write a cause."""
        source = cause.source or Source()
        return cls(
            kind=cause.kind,
            name=cause.name,
            role=cause.role,
            phase=cause.phase,
            value=json.dumps(json_of(cause.value)),
            reason=cause.reason,
            origin=cause.origin,
            distribution=source.distribution,
            version=source.version,
            via=cause.via,
        )

    def cause(self, capability: str) -> Cause:
        """Read it back."""
        source = Source(distribution=self.distribution, version=self.version)
        return Cause(
            kind=self.kind,
            name=self.name,
            role=self.role,
            phase=self.phase,
            value=value_of(capability, json.loads(self.value)),
            reason=self.reason,
            origin=self.origin,
            source=source if self.distribution else None,
            via=self.via,
        )


Place = tuple[Phase | None, str]
"""Where a value stands in a plan: a phase, or the server, and a capability."""


class StatedValue(BaseModel):
    """One value of a rank's plan."""

    model_config = ConfigDict(frozen=True)

    phase: Phase | None
    capability: str
    value: JsonValue
    causes: tuple[Contribution, ...]

    @classmethod
    def of(cls, phase: Phase | None, own: Resolved) -> Self:
        """Write a value."""
        return cls(
            phase=phase,
            capability=own.capability,
            value=json_of(own.value),
            causes=tuple(map(Contribution.of, own.causes)),
        )

    @property
    def place(self) -> Place:
        """Where it stands in a plan."""
        return self.phase, self.capability


class Words(BaseModel):
    """A statement with the values of the plan, as JSON."""

    model_config = ConfigDict(frozen=True)

    host: str
    fields: dict[str, tuple[Treatment, str]]
    failure: str | None
    values: tuple[StatedValue, ...]
    """None where the rank has no plan."""

    @classmethod
    def of(cls, statement: Statement, plan: Plan | None) -> Self:
        """Write what a rank with this plan says, or one that has none."""
        return cls(
            host=statement.host,
            fields={name: (how, legible(own)) for name, (how, own) in statement.fields.items()},
            failure=None if statement.failure is None else legible(statement.failure),
            values=() if plan is None else tuple(StatedValue.of(*own) for own in plan.values()),
        )

    @classmethod
    def read(cls, said: bytes) -> Self:
        """Read what a rank said; what another version says otherwise is one field that differs."""
        try:
            return cls.model_validate_json(said)
        except ValidationError:
            version = (Treatment.EQUAL, "one whose words are not known here")
            return cls(host="", fields={VERSION: version}, failure=None, values=())
