"""What one rank says of itself, as the others read it.

A field's treatment is stated with it, and nowhere else: whether it must be the same on every rank,
is joined, or is the rank's own.
"""

from __future__ import annotations

import hashlib
import json
import platform
import socket
from collections.abc import Iterable, Mapping
from enum import Enum
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Self

from pydantic import BaseModel, ConfigDict, JsonValue

from backend_caps.capability.fit import text_of
from backend_caps.capability.kind import Phase, Role
from backend_caps.capability.provenance import Origin, Source
from backend_caps.report.documents import json_of
from backend_caps.report.plan_values import value_of
from backend_caps.resolution.flags import ServerFlags
from backend_caps.resolution.plan import Cause, CauseKind, Plan
from backend_caps.resolution.uses import Use


class Treatment(Enum):
    """What ranks do with a field in which they may differ."""

    EQUAL = "equal"
    """It is the same on all; a rank without it has none."""
    EQUAL_WHERE_STATED = "equal where stated"
    """It is the same on all ranks that have it: what one does not use may be another there."""
    TOLD = "told"
    """It may differ, and where it does the plan says so."""
    PER_RANK = "per rank"
    """It is the rank's own, and nobody compares it."""


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

    @property
    def place(self) -> Place:
        """Where it stands in a plan."""
        return self.phase, self.capability


class Statement(BaseModel):
    """What a rank says, before anything is captured."""

    model_config = ConfigDict(frozen=True)

    host: str
    fields: dict[str, tuple[Treatment, str]]
    """By name, what is done about a difference, and what the rank has."""
    values: tuple[StatedValue, ...] = ()
    """The values of its plan; none where it has no plan."""
    failure: str | None = None
    """What was raised where a plan was to be."""

    @property
    def compared(self) -> bytes:
        """What two ranks that agree have in common, byte for byte."""
        own = {
            name: said for name, said in self.fields.items() if said[0] is not Treatment.PER_RANK
        }
        alike = self.model_copy(update={"host": "", "fields": own})
        return alike.model_dump_json().encode()

    @property
    def mark(self) -> int:
        """A digest of what is compared, as an int64 that is not negative."""
        return int.from_bytes(hashlib.sha256(self.compared).digest()[:8]) >> 1


def statement_of(
    plan: Plan,
    *,
    given: ServerFlags | None = None,
    arguments: Mapping[str, object] | None = None,
    per_rank: frozenset[str] = frozenset(),
) -> Statement:
    """Write what a rank with this plan says.

    Args:
        plan: its own.
        given: the flags as they were given, before anything was chosen; else the plan's.
        arguments: what else a rank is configured with, by name.
        per_rank: names of flags and arguments in which ranks may differ.
    """
    flags = plan.flags if given is None else given
    fields = {
        **_premises(plan),
        **_given("flag ", _said(flags), per_rank),
        **_given("", arguments or {}, per_rank),
        **_backends(plan.uses),
        **_chosen(plan),
    }
    values = tuple(
        StatedValue(
            phase=phase,
            capability=own.capability,
            value=json_of(own.value),
            causes=tuple(map(Contribution.of, own.causes)),
        )
        for phase, own in plan.values()
    )
    return Statement(host=host_name(), fields=dict(sorted(fields.items())), values=values)


def failure_of(error: BaseException) -> Statement:
    """Write what a rank without a plan says."""
    kind = type(error).__name__
    return Statement(host=host_name(), fields={}, failure=f"{kind}: {error}")


def _premises(plan: Plan) -> dict[str, tuple[Treatment, str]]:
    """List what every rank has to start from."""
    rules = ", ".join(rule.name for rule in plan.rules.rules)
    overrides = ", ".join(f"{name}={text_of(value)}" for name, value in plan.overrides)
    equal = {
        "backend-caps": _version_of("backend-caps"),
        "rules": plan.rules.name,
        "rules of that set": rules,
        "policy": plan.policy.value,
        "unsafe_override": overrides or "none",
        "engine": _engine(plan),
    }
    own = {"python": platform.python_version(), "host": host_name()}
    return {
        **{name: (Treatment.EQUAL, value) for name, value in equal.items()},
        **{name: (Treatment.PER_RANK, value) for name, value in own.items()},
    }


def _engine(plan: Plan) -> str:
    """Name the installed engine whose rules these are."""
    family = plan.rules.name.partition("-")[0]
    return f"{family} {_version_of(family)}"


def _said(flags: ServerFlags) -> Mapping[str, object]:
    """List the flags that are no defaults: who says what holds anyway does not differ."""
    fields = ServerFlags.model_fields
    return {name: value for name, value in flags if value != fields[name].default}


def _given(
    kind: str, values: Mapping[str, object], per_rank: frozenset[str]
) -> dict[str, tuple[Treatment, str]]:
    return {
        f"{kind}{name}": (Treatment.PER_RANK if name in per_rank else Treatment.EQUAL, f"{value}")
        for name, value in values.items()
    }


def _backends(uses: Iterable[Use]) -> dict[str, tuple[Treatment, str]]:
    """Say what each backend in use is: two ranks may run two, but not two releases of one."""
    return {f"backend {use.backend}": (Treatment.EQUAL_WHERE_STATED, _release(use)) for use in uses}


def _release(use: Use) -> str:
    if use.declaration is None:
        return "not read" if use.problem is None else f"not read ({use.problem.code})"
    declared = hashlib.sha256(use.declaration.model_dump_json().encode()).hexdigest()[:12]
    shipped = " ".join(own for own in (use.source.distribution, use.source.version) if own)
    return f"{shipped or 'by hand'}, declaration {declared}"


def _chosen(plan: Plan) -> dict[str, tuple[Treatment, str]]:
    return {
        f"choice for {choice.flag}": (
            Treatment.TOLD,
            choice.fitting[0].name if choice.fitting else "none",
        )
        for choice in plan.choices
    }


@cache
def _version_of(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "not installed"


def host_name() -> str:
    """Name this machine, as others know it."""
    return socket.gethostname()
