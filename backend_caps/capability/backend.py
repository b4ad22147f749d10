"""A backend as discovery found it: its declaration, or the problems with it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from backend_caps.capability.declaration import Declaration
from backend_caps.capability.provenance import Origin, Problem, Source, Status

__all__ = ["Backend", "Backends", "EngineClass", "Problem", "Reading", "Status", "Unverified"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One statement in an engine's source about a capability, with its place."""

    origin: Origin
    """`DECLARED`, `CONDITIONAL`, `INHERITED`, `UNDECLARED`, or `NOT_KNOWN` where the source was
    not understood."""
    words: str
    """The statement as written, such as `needs_cpu_seq_lens = False`."""
    value: object = None
    """The value; None where it depends on other values, or is not stated."""
    declared_at: str | None = None
    """`file:line`, the file relative to the folder that the engine is imported from."""
    inherited_from: str | None = None
    """The base class that states it, where the backend's class does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineClass:
    """The class of an engine that a backend was read from."""

    path: str
    """`package.module.Class`."""
    registered_as: tuple[str, ...] = ()
    """The names that flags use for it, sorted; where a name may select another class too, the
    parts of that name's record hold the conditions."""
    readings: Mapping[str, Reading] = field(default_factory=dict)
    """The source's statements by capability; a capability that it does not mention is left out."""
    attributes: Mapping[str, Reading] = field(default_factory=dict)
    """Flags of the engine that match no capability, by the engine's name for them."""
    composite: str | None = None
    """For a wrapper, how it computes a value from its children's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unverified:
    """A claim that is removed from a declaration for lack of the required evidence."""

    value: object
    """The claimed value; `UNDECLARED` where only conditions claim it."""
    words: str
    """The claim, and why it does not count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """A backend's name, as one distribution claims it."""

    name: str
    status: Status = Status.OK
    source: Source
    declaration: Declaration | None = None
    """None unless `status` is `OK`."""
    problems: tuple[Problem, ...] = ()
    engine_class: EngineClass | None = None
    """The engine's class, where the backend was read from an engine's source."""
    unverified: Mapping[str, Unverified] = field(default_factory=dict, compare=False)
    """The claims that count as undeclared for lack of evidence, by capability; `declaration` does
    not hold them."""


def adapters_for(engine: str, backends: Iterable[Backend]) -> Mapping[str, Backend]:
    """Map each class that a declaration names as its adapter for an engine to its backend."""
    return {
        place.replace(":", "."): backend
        for backend in backends
        if backend.declaration is not None
        for name, place in backend.declaration.adapters.items()
        if name == engine
    }


class Backends(Mapping[str, Backend]):
    """Backends by name, and those that the allow-list keeps out."""

    @property
    @abstractmethod
    def left_out(self) -> Mapping[str, Backend]:
        """The installed backends that the allow-list keeps out, by name."""
