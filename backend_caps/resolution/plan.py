"""The result of resolution: each capability's value, with all its causes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from backend_caps.capability.backend import Problem
from backend_caps.capability.facts import Facts, Situation, text_of
from backend_caps.capability.kind import Kind, Phase, Role, Scope
from backend_caps.capability.provenance import BY_HAND, Origin, Source
from backend_caps.capability.sets import Conflict
from backend_caps.capability.vocabulary import CAPABILITIES, IN_PLANS, Capabilities, HostSeqLens
from backend_caps.resolution.errors import ResolutionError
from backend_caps.resolution.flags import ServerFlags
from backend_caps.resolution.launch import Launch
from backend_caps.resolution.rules import Effect, RuleSet, effect_of
from backend_caps.resolution.uses import Use


class CauseKind(Enum):
    """The kind of thing that a cause names."""

    BACKEND = "backend"
    RULE = "rule"
    OVERRIDE = "override"
    ENGINE = "engine"


class Policy(Enum):
    """The handling of a plan's problems."""

    STRICT = "strict"
    """They are errors."""
    WARN = "warn"
    """They are shown."""
    QUIET = "quiet"
    """They are kept as data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One contribution to a value, with its origin and reason."""

    kind: CauseKind
    name: str
    """The backend, the rule, or the overridden capability."""
    role: Role | None = None
    phase: Phase | None = None
    value: object
    reason: str
    origin: Origin
    source: Source | None = None
    """Where a backend is declared; rules and overrides have none."""
    via: tuple[str, ...] = ()
    rank: int | None = None
    """The rank it comes from, once plans of several ranks are joined."""
    host: str | None = None
    """That rank's machine."""

    @property
    def is_known(self) -> bool:
        """Whether something states the value; otherwise it is the worst for want of knowledge."""
        return self.origin is not Origin.NOT_KNOWN

    @property
    def known_value(self) -> object:
        """The value; None where it is not known."""
        return self.value if self.is_known else None

    @property
    def sort_key(self) -> tuple[str, ...]:
        """Order the causes of one value by name and place."""
        place = (self.role.value if self.role else "", self.phase.value if self.phase else "")
        rank = "" if self.rank is None else f"{self.rank:09d}"
        return (self.kind.value, self.name, *place, *self.via, self.reason, rank)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """One value of a plan."""

    capability: str
    value: object
    effect: Effect
    causes: tuple[Cause, ...]
    """Every contribution, the deciding ones first."""

    @property
    def is_known(self) -> bool:
        """Whether a cause that decides the value states it.

        Otherwise `value` is the worst, so that a server is configured safely; but nothing says
        that a backend cannot do better.
        """
        deciding = [cause for cause in self.causes if cause.value == self.value]
        return not deciding or any(cause.is_known for cause in deciding)

    @property
    def known_value(self) -> object:
        """The value; None where it is not known."""
        return self.value if self.is_known else None

    @property
    def origin(self) -> Origin | None:
        """`NOT_KNOWN` where the value is not known; else None, for each cause has its own."""
        return None if self.is_known else Origin.NOT_KNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A backend, tried as the value of a flag."""

    name: str
    source: Source = BY_HAND
    priority: int = 0
    """The `auto_priority` it declares for this server; of several uses, the least."""
    reasons: tuple[Problem, ...] = ()
    """The problems that exclude it; empty: it fits."""
    unchecked: tuple[Problem, ...] = ()
    """The checks that lack a value. Under the policy `strict` they are among the reasons."""
    host_seq_lens: str | None = None
    """The level that the whole server needs with it; None where it could not be tried."""
    costs: str = ""
    """What that level does on this server, or why it does nothing."""

    @property
    def fits(self) -> bool:
        """Whether it has no reason against it."""
        return not self.reasons

    @property
    def sort_key(self) -> tuple[bool, int, str]:
        """Order candidates: those that fit, then the higher priority, then the name."""
        return (not self.fits, -self.priority, self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The choice for one flag that is `auto`."""

    flag: str
    """In its command-line spelling."""
    candidates: tuple[Candidate, ...]
    """Those that fit, best first; then the others, in the same order."""
    unknown_facts: tuple[str, ...] = ()
    """The facts that nothing could be checked against."""

    @property
    def fitting(self) -> tuple[Candidate, ...]:
        """The candidates that fit, best first."""
        return tuple(each for each in self.candidates if each.fits)

    @property
    def rejected(self) -> tuple[Candidate, ...]:
        """The candidates that do not fit."""
        return tuple(each for each in self.candidates if not each.fits)

    @property
    def chosen(self) -> Candidate | None:
        """The best candidate that fits; None where none does."""
        return next(iter(self.fitting), None)

    @property
    def tied(self) -> tuple[str, ...]:
        """The candidates of the chosen one's priority, which come later by name."""
        if self.chosen is None:
            return ()
        _, *others = self.fitting
        return tuple(each.name for each in others if each.priority == self.chosen.priority)

    def __str__(self) -> str:
        fit = f"{len(self.fitting)} of {len(self.candidates)} installed backends fit"
        if self.chosen is None:
            return f"{self.flag} auto finds no backend ({fit})"
        reasons = [f"priority {self.chosen.priority}", fit]
        if self.tied:
            reasons.append(f"by name before {', '.join(self.tied)}, of the same priority")
        return f"{self.flag} auto is {self.chosen.name} ({'; '.join(reasons)})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The values that configure a server, indexed by capability, or capability and phase."""

    by_phase: Mapping[Phase | None, Mapping[str, Resolved]]
    """The values of each phase; under None, first, those of the server."""
    uses: tuple[Use, ...]
    flags: ServerFlags
    facts: Facts
    rules: RuleSet
    policy: Policy
    problems: tuple[Problem, ...] = ()
    overrides: tuple[tuple[str, object], ...] = ()
    choices: tuple[Choice, ...] = ()
    """The choices for flags that were `auto`; `flags` has the chosen names."""
    launch: Launch | None = None
    """What the engine makes of the command line; `flags` has its final values."""

    def __getitem__(self, key: str | tuple[str, Phase]) -> Resolved:
        """Return a capability's value, of the server or of one phase.

        Raises:
            KeyError: there is no such capability, or it has the other scope.
        """
        name, phase = (key, None) if isinstance(key, str) else key
        kind = CAPABILITIES.get(name)
        if kind is None or kind.scope is Scope.USE:
            raise KeyError(f"a plan has no {name!r}; it has: {', '.join(IN_PLANS)}")
        if (kind.scope is Scope.PHASE) is (phase is None):
            wanted = f"plan[{name!r}, Phase.DECODE]" if phase is None else f"plan[{name!r}]"
            raise KeyError(f"{name!r} has scope {kind.scope.value}; write {wanted}")
        return self.by_phase[phase][name]

    def __hash__(self) -> int:
        """Hash the values: equal plans have equal hashes."""
        return hash(self.digest)

    def __str__(self) -> str:
        """Write rules, each active value with its first causes, and problems."""
        active: dict[str, list[tuple[Phase | None, Resolved]]] = {name: [] for name in IN_PLANS}
        for phase, resolved in self.values():
            active[resolved.capability] += [(phase, resolved)] if resolved.effect.active else []
        lines = [f"plan {self.fingerprint} under {self.rules}"]
        lines += [_line(name, values) for name, values in active.items() if values]
        idle = [name for name, values in active.items() if not values]
        lines += [f"  no effect here: {', '.join(idle)}"] if idle else []
        if self.problems:
            codes = ", ".join(dict.fromkeys(problem.code for problem in self.problems))
            lines.append(f"  {len(self.problems)} problem(s): {codes}")
        return "\n".join(lines)

    @property
    def server(self) -> Mapping[str, Resolved]:
        """The values that the server has once, by capability."""
        return self.by_phase[None]

    @property
    def phases(self) -> Mapping[Phase, Mapping[str, Resolved]]:
        """The values of each phase, by capability."""
        return {phase: values for phase, values in self.by_phase.items() if phase is not None}

    @property
    def relays_speculation(self) -> bool:
        """Whether speculative steps are prepared while the last one runs."""
        algorithm = self.flags.speculative_algorithm
        if algorithm is None or self.flags.disable_overlap_schedule:
            return False
        return self.rules.overlaps(algorithm)

    @property
    def needs_cpu_seq_lens(self) -> bool:
        """Whether exact lengths must reach the host: SGLang's flag of that name."""
        return self.host_seq_lens is HostSeqLens.EXACT

    @property
    def unsafe_override(self) -> Capabilities:
        """The overrides of joined values, as `resolve` takes them."""
        return Capabilities.model_validate(dict(self.overrides))

    @property
    def host_seq_lens(self) -> HostSeqLens:
        """The level of lengths that the host mirrors."""
        level = self.server["host_seq_lens"].value
        assert isinstance(level, HostSeqLens), f"a plan holds {level!r}"
        return level

    def values(self) -> Iterator[tuple[Phase | None, Resolved]]:
        """List every value: the server's, then each phase's."""
        for phase, values in self.by_phase.items():
            yield from ((phase, resolved) for resolved in values.values())

    @property
    def digest(self) -> str:
        """A digest of the values under these rules: equal ones configure equal ranks."""
        return _digest([self.rules.name, self._written_values()])

    @property
    def fingerprint(self) -> str:
        """A digest of the values, and of the backends, flags and rules that they come from."""
        sources = {use: str(replace(use.source, declared_at=None)) for use in self.uses}
        uses = {(u.role.value, u.phase.value, u.backend, text) for u, text in sources.items()}
        decisive = self.flags.model_dump(exclude_defaults=True)
        flags = {name: text_of(value) for name, value in decisive.items()}
        return _digest([self.rules.name, sorted(uses), flags, self._written_values()])

    def _written_values(self) -> list[tuple[str, str, str]]:
        return [
            (phase.value if phase else "server", resolved.capability, text_of(resolved.value))
            for phase, resolved in self.values()
        ]

    def raised(self, capability: str, need: object, reason: str) -> Plan:
        """Return this plan with a server need joined with one of the engine."""
        own = self.server[capability]
        cause = Cause(
            kind=CauseKind.ENGINE, name=capability, value=need, reason=reason, origin=Origin.FORCED
        )
        server = {**self.server, capability: self._joined(own, need, (cause,))}
        return replace(self, by_phase={**self.by_phase, None: server})

    def join(self, other: Plan) -> Plan:
        """Join with another rank's plan: needs of either, supports of both.

        Raises:
            ResolutionError: the two were resolved under different rules, flags or policies.
        """
        theirs = other._premises()
        for field, own in self._premises().items():
            if own != theirs[field]:
                raise ResolutionError(
                    "plans-differ",
                    f"plans with {field} {own!r} and {theirs[field]!r} cannot be joined; expected "
                    "the same on every rank. Resolve both under one of them.",
                )

        def joined(phase: Phase | None, own: Resolved) -> Resolved:
            theirs = other.by_phase[phase][own.capability]
            return self._joined(own, theirs.value, theirs.causes)

        return replace(
            self.with_values(joined),
            uses=tuple(sorted({*self.uses, *other.uses}, key=lambda use: use.sort_key)),
            problems=in_order({*self.problems, *other.problems}),
            overrides=tuple(sorted({*self.overrides, *other.overrides}, key=repr)),
        )

    def _premises(self) -> Mapping[str, str]:
        """Return the texts that must be equal in plans to be joined."""
        flags = ", ".join(f"{name}={value}" for name, value in self.flags.given().items())
        names = ", ".join(rule.name for rule in self.rules.rules)
        rules = {"rules": self.rules.name, "rules of that set": names}
        return {**rules, "flags": flags, "policy": self.policy.value}

    def _joined(self, own: Resolved, value: object, causes: Iterable[Cause]) -> Resolved:
        """Join a value of this plan with another value and its causes."""
        both = CAPABILITIES[own.capability].join(own.value, value)
        situation = self.flags.situation(self.facts)
        return self.resolved(situation, own.capability, both, (*own.causes, *causes))

    def resolved(
        self, situation: Situation, capability: str, value: object, causes: Sequence[Cause]
    ) -> Resolved:
        """Combine a value, its causes and its effect on this server."""
        effect = Effect(active=False, text="no use on this server reads it")
        if any(cause.kind is CauseKind.BACKEND for cause in causes):
            effect = effect_of(capability, value, self.rules, situation)
        return resolved_from(capability, value, causes, effect)

    def with_values(self, change: Callable[[Phase | None, Resolved], Resolved]) -> Plan:
        """Return this plan with each value changed by `change`, given its phase."""
        changed = {
            phase: {name: change(phase, resolved) for name, resolved in values.items()}
            for phase, values in self.by_phase.items()
        }
        return replace(self, by_phase=changed)


def _line(name: str, active: Sequence[tuple[Phase | None, Resolved]]) -> str:
    """Write the values of a capability with the names of their causes."""
    phases: dict[str, list[str]] = {}
    for phase, own in active:
        text = text_of(own.value) if own.is_known else "not known"
        phases.setdefault(text, []).append(phase.value if phase else "")
    values = "; ".join(
        value if len(phases) == 1 else f"{value} in {' and '.join(those)}"
        for value, those in phases.items()
    )
    causes = dict.fromkeys(own.causes[0].name for _, own in active if own.causes)
    return f"  {name}: {values} ({', '.join(causes)})"


def resolved_from(name: str, value: object, causes: Iterable[Cause], effect: Effect) -> Resolved:
    """Combine a value and its causes: no cause twice, the deciding ones first."""
    kind = CAPABILITIES[name]
    unique = sorted(set(causes), key=lambda c: (_weight(c, kind, value), *c.sort_key))
    if isinstance(value, Conflict):
        value = Conflict(tuple(sorted({c.name for c in unique if c.value != kind.best})))
    return Resolved(capability=name, value=value, effect=effect, causes=tuple(unique))


def _weight(cause: Cause, kind: Kind, value: object) -> str:
    """Rank a cause: override, gives the value alone, restricts it, or neither."""
    if cause.kind is CauseKind.OVERRIDE:
        return "0"
    if kind.join(cause.value, value) == cause.value:
        return "1"
    return "2" if cause.value != kind.best else "3"


def in_order(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """Sort problems, so that plans of the same content are equal."""
    return tuple(sorted(problems, key=lambda each: (each.code, each.message, each.remedy)))


def _digest(parts: object) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
