"""A use of a backend: the role and phase that it runs, and how it came there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from backend_caps.capability.backend import Problem, Reading, Unverified
from backend_caps.capability.declaration import Declaration
from backend_caps.capability.facts import Facts, Given, Situation, Truth
from backend_caps.capability.kind import Phase, Role
from backend_caps.capability.provenance import BY_HAND, Source
from backend_caps.resolution import errors


class UseKind(Enum):
    """How a backend came to be in use."""

    NAMED = "named"
    """A flag names it, or a composite that hands uses to it."""
    ENGINE_DEFAULT = "engine default"
    """No flag names one, so the engine picks a backend that is not known."""
    PAIR = "prefill/decode pair"
    """The engine wraps two backends in one, whose own values differ from theirs."""
    LAYERS = "layers"
    """The engine chose it for layers of a model, and asked its class whether it fits them."""


PAIR = UseKind.PAIR.value
"""The record's name of such a wrapper, as engine readers make it; no flag names it."""

NamedBy = tuple[str, str | None]
"""A flag or another slot, and the backend that it names; None for the engine's default."""
_Composite = tuple[str, Role, Phase, tuple[str, ...]]
"""A composite for one slot, role and phase: the names of its outer composites, then its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Handover:
    """A composite that hands a use on to one of its parts."""

    composite: str
    given: Given | None = None
    """The condition under which it does; None: always."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """One backend in one role and phase."""

    backend: str
    role: Role
    phase: Phase
    declaration: Declaration | None
    """None where it could not be read; `problem` then holds the reason."""
    source: Source = BY_HAND
    slot: str = "by hand"
    """The flag that put the backend there."""
    kind: UseKind = UseKind.NAMED
    via: tuple[Handover, ...] = ()
    """The composites through which it came, outermost first; all their conditions must hold."""
    adds_only: bool = False
    """Whether it is a composite's own capabilities; what it leaves out, its parts declare."""
    problem: Problem | None = None
    facts: Facts | None = None
    """What the layers that take it ask, where a plugin declares it; None for other uses."""
    readings: Mapping[str, Reading] = field(default_factory=dict, compare=False)
    """The statements of an engine's source by capability, where the backend was read from one."""
    found: Mapping[str, Reading] = field(default_factory=dict, compare=False)
    """What the engine itself finds for the layers that take it, by capability."""
    unverified: Mapping[str, Unverified] = field(default_factory=dict, compare=False)
    """Claims that count as undeclared for lack of evidence, by capability."""
    by_auto: bool = field(default=False, compare=False)
    """Whether the flag is `auto` and the backend was chosen for it."""
    unread_engine: str | None = field(default=None, compare=False)
    """For a missing backend, the engine that has it built in, where no engine was read."""

    @property
    def is_checked(self) -> bool:
        """Whether its declaration is compared with facts.

        A class that was only read is not: the engine has asked the class itself.
        """
        return self.kind is not UseKind.LAYERS or self.facts is not None

    @property
    def composites(self) -> tuple[str, ...]:
        """The names of the composites through which it came, outermost first."""
        return tuple(each.composite for each in self.via)

    @property
    def named(self) -> str:
        """The name that a flag uses: the outermost composite, or the backend itself."""
        return (*self.composites, self.backend)[0]

    @property
    def conditions(self) -> tuple[Given, ...]:
        """The conditions under which the composites hand it on."""
        return tuple(each.given for each in self.via if each.given is not None)

    def placed(self, situation: Situation) -> Situation:
        """Return the situation with this role and phase, and with what its layers ask."""
        asked = {} if self.facts is None else self.facts.known()
        return {**situation, **asked, "role": self.role, "phase": self.phase}

    def failing(self, situation: Situation) -> int | None:
        """Return the index in `via` of the first condition known to fail, or None."""
        placed = self.placed(situation)
        truths = (each.given and each.given.truth(placed) for each in self.via)
        return next((at for at, truth in enumerate(truths) if truth is Truth.FALSE), None)

    @property
    def sort_key(self) -> tuple[str, ...]:
        """Order uses by role, phase and backend."""
        place = (self.role.value, self.phase.value)
        conditions = ("" if each.given is None else str(each.given) for each in self.via)
        asked = "" if self.facts is None else self.facts.digest
        own = (self.backend, str(self.source), self.slot, asked)
        return (*place, *own, *self.composites, *conditions)


def made_of(uses: Iterable[Use], situation: Situation) -> Iterator[Use]:
    """Leave out the uses whose conditions are known to fail.

    Where none of a composite's parts is left for a role and phase, the composite itself is used
    there, with a problem.
    """
    stopped: list[tuple[Use, int]] = []
    handing: set[_Composite] = set()
    for use in uses:
        failing = use.failing(situation)
        if failing is None:
            yield use
        else:
            stopped.append((use, failing))
        if not use.adds_only:
            handing.update(_composites(use)[:failing])
    # The composites that hand no use on, each with its failing conditions.
    failed: dict[Use, set[str]] = {}
    for use, end in stopped:
        if _composites(use)[end] not in handing:
            # A use holds only its backend's source, so the composite has none.
            whole = replace(bare(use), backend=use.via[end].composite, via=use.via[:end])
            failed.setdefault(whole, set()).add(str(use.via[end].given))
    for whole, conditions in failed.items():
        word = "not" if len(conditions) == 1 else "neither"
        yield without_part(whole, f": {word} {' nor '.join(sorted(conditions))}")


def _composites(use: Use) -> tuple[_Composite, ...]:
    """List the composites that hand a use on, outermost first."""
    names = use.composites
    return tuple((use.slot, use.role, use.phase, names[: end + 1]) for end in range(len(names)))


def without_part(use: Use, why: str = "") -> Use:
    """Return a use with the problem of a composite that hands it to none of its parts."""
    values = {"name": use.backend, "slot": use.slot, "why": why}
    place = {"role": use.role.value, "phase": use.phase.value}
    return replace(use, declaration=None, problem=errors.plan_problem("no-part", **values, **place))


def use_in(role: Role, phase: Phase, name: NamedBy, kind: UseKind = UseKind.NAMED) -> Use:
    """Make a use of which only the backend's name is known; without one, it is the default's."""
    slot, backend = name
    if backend is None:
        kind = UseKind.ENGINE_DEFAULT
        backend = kind.value
    return Use(backend=backend, role=role, phase=phase, declaration=None, slot=slot, kind=kind)


def bare(use: Use) -> Use:
    """Return a use without what was read of its backend."""
    own = use_in(use.role, use.phase, (use.slot, use.backend), use.kind)
    return replace(own, facts=use.facts)
