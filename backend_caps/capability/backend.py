"""A backend as it was found: its declaration, or what stood in the way of one."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field

from backend_caps.capability.declaration import Declaration
from backend_caps.capability.provenance import Origin, Problem, Source, Status

__all__ = ["Backend", "Backends", "EngineClass", "Problem", "Reading", "Status", "Unverified"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What an engine's source says of one thing, where and in whose words."""

    origin: Origin
    """`DECLARED`, `CONDITIONAL`, `INHERITED` or `UNDECLARED`."""
    words: str
    """What the source says, such as `needs_cpu_seq_lens = False`."""
    value: object = None
    """The value where there is one; None where it depends, or nobody stated it."""
    declared_at: str | None = None
    """`file:line`, the file relative to the folder that the engine is imported from."""
    inherited_from: str | None = None
    """The class that states it, where this one does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineClass:
    """The class of an engine that a backend was read from."""

    path: str
    """`package.module.Class`."""
    registered_as: tuple[str, ...] = ()
    """The names that flags use for it, sorted; where a name may also mean another class, the
    name's own parts say when."""
    readings: Mapping[str, Reading] = field(default_factory=dict)
    """By capability, what the source says; a capability that it has no words for is left out."""
    attributes: Mapping[str, Reading] = field(default_factory=dict)
    """By the engine's own name, flags that have no capability of ours."""
    composite: str | None = None
    """How a wrapper makes its answer from its children's, where it does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unverified:
    """A claim that was taken out of a declaration, because evidence is required."""

    value: object
    """What is claimed; `UNDECLARED` where only conditions claim it."""
    words: str
    """What is claimed and why it does not count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """One claim to a backend's name."""

    name: str
    status: Status = Status.OK
    source: Source
    declaration: Declaration | None = None
    """None unless `status` is `OK`."""
    problems: tuple[Problem, ...] = ()
    engine_class: EngineClass | None = None
    """Where it was read from an engine's source."""
    unverified: Mapping[str, Unverified] = field(default_factory=dict, compare=False)
    """By capability, what counts as undeclared where evidence is required; the declaration is
    without it."""


class Backends(Mapping[str, Backend]):
    """Backends by their names, and those that would have one were they let in."""

    @property
    @abstractmethod
    def left_out(self) -> Mapping[str, Backend]:
        """What is installed, and kept from use by whoever says which plugins are."""
