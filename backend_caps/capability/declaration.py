"""What a backend's author ships: capabilities, conditions, parts and a pointer to the code.

`declared` evaluates a declaration against what is known of a server.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import reduce
from typing import Annotated, Literal

from pydantic import BeforeValidator, ConfigDict, Field, PlainSerializer, model_validator
from pydantic.dataclasses import dataclass
from pydantic_core import PydanticCustomError

from backend_caps.capability.facts import (
    Facts,
    Given,
    Reason,
    Situation,
    Truth,
    text_of,
    unsupported_reasons,
)
from backend_caps.capability.kind import UNDECLARED, Kind, Phase, Role
from backend_caps.capability.model import FROZEN, Dtype, FrozenModel, Text
from backend_caps.capability.provenance import Origin
from backend_caps.capability.sets import STORED_AS_TUPLE, SomeOf
from backend_caps.capability.vocabulary import CAPABILITIES, Capabilities

API = 1
"""The version of the contract: entry-point group `backend_caps.backends`."""

_PLACE = re.compile(r"[\w.]+:[\w.]+")
_CLASS = re.compile(r"([\w.]*\w)\.([A-Z]\w*)")
_MODULE = re.compile(r"\w+(\.\w+)*")


def _written_place(value: object) -> object:
    """Refuse a place without a colon between module and class."""
    match value:
        case type():
            meant = f"{value.__module__}:{value.__qualname__}"
        case str() if dotted := _CLASS.fullmatch(value):
            meant = ":".join(dotted.groups())
        case str() if _MODULE.fullmatch(value):
            meant = f"{value}:Name"
        case str() if not _PLACE.fullmatch(value):
            meant = "package.module:Name"
        case _:
            return value
    raise PydanticCustomError("place", f"Input should be {meant!r}")


Place = Annotated[str, Field(pattern=r"^[\w.]+:[\w.]+$"), BeforeValidator(_written_place)]
"""`"package.module:Name"` of the object to import when the backend is built, and never before."""


Tolerances = Annotated[
    Mapping[Dtype, Annotated[float, Field(gt=0, allow_inf_nan=False)]],
    FROZEN,
    PlainSerializer(dict, dict[str, float]),
]
"""By dtype, how far an output may be from float64's, absolutely and relatively."""


class When(FrozenModel):
    """Capabilities that hold where a condition does; they replace the base's."""

    given: Given
    """The condition."""
    capabilities: Capabilities
    """What holds then; what is left out stays as the base says."""
    reason: Text
    """Why, in words that a report repeats."""

    @model_validator(mode="after")
    def _states_something(self) -> When:
        if not self.capabilities.stated():
            raise ValueError(
                f"When({self.given}) states no capability; name at least one that differs there."
            )
        return self


@dataclass(frozen=True, config=ConfigDict(extra="forbid", defer_build=True))
class Part:
    """A backend that a composite hands some of its uses to."""

    backend: Text
    """The name of the part."""
    phases: SomeOf[Phase] = field(default=frozenset(Phase), kw_only=True)
    """The phases whose uses it takes."""
    roles: SomeOf[Role] = field(default=frozenset(Role), kw_only=True)
    """The roles whose uses it takes."""
    given: Given | None = field(default=None, kw_only=True)
    """The condition under which it takes them; while that is open, it does. None: always."""

    def takes(self, role: Role, phase: Phase) -> bool:
        """Tell whether a use of the composite goes to this part."""
        return role in self.roles and phase in self.phases


def _written_list(value: object) -> object:
    """Refuse one condition or part where a list of them is expected."""
    if isinstance(value, When | Part):
        meant = f"[{type(value).__name__}(...)]"
        raise PydanticCustomError("list", f"Input should be a list: {meant}")
    return value


def _written_parts(value: object) -> object:
    """Refuse names where parts are expected."""
    match value:
        case str(name) | [str(name), *_]:
            raise PydanticCustomError("parts", f"Input should be a list: [Part({name!r}), ...]")
    return _written_list(value)


class Declaration(FrozenModel):
    """State what a backend needs and supports. Plain data: importing it must not load torch.

    A composite names its `parts`; what they say is expanded to uses, and its own capabilities
    may only add needs. `implementation` is `"package.module:Name"`, imported when the backend
    is built and never before.
    """

    api: Literal[1] = 1
    """The version of this contract."""
    capabilities: Capabilities = Field(default_factory=Capabilities)
    """What holds unless a condition says otherwise."""
    conditions: Annotated[Sequence[When], BeforeValidator(_written_list), STORED_AS_TUPLE] = ()
    """What holds under conditions; of several that hold, the join."""
    parts: Annotated[Sequence[Part], BeforeValidator(_written_parts), STORED_AS_TUPLE] = ()
    """The backends that a composite hands its uses to."""
    implementation: Place | None = None
    """`"package.module:Name"` of the class that computes."""
    adapters: Annotated[
        Mapping[Literal["sglang", "vllm"], Place], FROZEN, PlainSerializer(dict, dict[str, str])
    ] = Field(default_factory=dict, validate_default=True)
    """By engine, `"package.module:Name"` of what makes the backend one of that engine's own: for
    SGLang a callable that takes its model runner and returns a backend of its interface, for vLLM
    the class that `register_backend` is given."""
    tolerances: Tolerances = Field(default_factory=dict, validate_default=True)
    """How far an output may be from float64's, absolutely and relatively, by dtype. For a
    dtype that is left out, the conformance kit allows two steps of its rounding."""

    def restated(self, stated: Mapping[str, object]) -> Declaration:
        """Return the declaration with values, by capability, that hold under every condition."""
        kept = []
        for when in self.conditions:
            left = {k: v for k, v in when.capabilities.stated().items() if k not in stated}
            if left:
                capabilities = Capabilities.model_validate(left)
                kept.append(when.model_copy(update={"capabilities": capabilities}))
        capabilities = self.capabilities.model_copy(update=stated)
        return self.model_copy(update={"capabilities": capabilities, "conditions": tuple(kept)})

    def unsupported_reasons(self, facts: Facts) -> tuple[Reason, ...]:
        """List every reason why the backend does not fit what is known, by its base values."""
        return unsupported_reasons(dict(self.capabilities), facts)


Stated = tuple[object, Origin, str]
"""A value, how it came to be, and why."""


def declared(declaration: Declaration, capability: str, situation: Situation) -> Stated:
    """Evaluate a declaration: the base, or what conditions put in its place.

    Where a condition is open, the value covers both ways. A capability that is not stated gets
    the worst value; `UNDECLARED` becomes a value nowhere else.
    """
    kind = CAPABILITIES[capability]
    values = _stated(declaration, capability, situation)
    if all(origin is Origin.UNDECIDED for _, origin, _ in values):
        undeclared = kind.worst, Origin.UNDECLARED, f"does not declare {capability}"
        values = [undeclared, *values]
    return _joined(kind, values)


def added(declaration: Declaration, capability: str, situation: Situation) -> Stated | None:
    """Evaluate what a composite adds to its parts' values; None: nothing.

    Denying the capability that `requires` names denies this one too.
    """
    kind = CAPABILITIES[capability]
    adds = _stated(declaration, capability, situation)
    if kind.requires is not None:
        best, required = CAPABILITIES[kind.requires].best, kind.requires
        required_values = _stated(declaration, required, situation)
        denied = [stated for stated in required_values if stated[0] != best]
        adds += [(kind.worst, origin, reason) for _, origin, reason in denied]
    return _joined(kind, adds) if adds else None


def _stated(declaration: Declaration, capability: str, situation: Situation) -> list[Stated]:
    """List what is stated: the base or the conditions that hold, then those that are open."""
    holding: list[Stated] = []
    undecided: list[Stated] = []
    for when in declaration.conditions:
        value = getattr(when.capabilities, capability)
        truth = Truth.FALSE if value is UNDECLARED else when.given.truth(situation)
        if truth is Truth.TRUE:
            holding.append((value, Origin.CONDITIONAL, f"{when.reason} ({when.given})"))
        elif truth is Truth.UNKNOWN:
            words = f"{when.reason} (not known yet: {when.given})"
            undecided.append((value, Origin.UNDECIDED, words))
    value = getattr(declaration.capabilities, capability)
    if not holding and value is not UNDECLARED:
        holding.append((value, Origin.DECLARED, f"declares {capability}={text_of(value)}"))
    return [*holding, *undecided]


def _joined(kind: Kind, values: list[Stated]) -> Stated:
    """Join values; the reason is that of the deciding value, the later on a tie."""

    def join(one: Stated, other: Stated) -> Stated:
        value = kind.join(one[0], other[0])
        if value == other[0]:
            return other
        return one if value == one[0] else (value, other[1], f"{one[2]}; {other[2]}")

    return reduce(join, values)
