"""The answer: a value for every capability, with everything that caused it."""

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
from backend_caps.resolution.rules import Effect, RuleSet, effect_of
from backend_caps.resolution.uses import Use


class CauseKind(Enum):
    """Who a cause names."""

    BACKEND = "backend"
    RULE = "rule"
    OVERRIDE = "override"
    ENGINE = "engine"


class Policy(Enum):
    """What is done about a plan's problems."""

    STRICT = "strict"
    """They are errors."""
    WARN = "warn"
    """They are shown."""
    QUIET = "quiet"
    """They are kept as data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One contribution to a value: who, what, and in whose words why."""

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
    """The rank it comes from, once plans of several are joined."""
    host: str | None = None
    """That rank's machine."""

    @property
    def sort_key(self) -> tuple[str, ...]:
        """Order causes by who and where, for causes of one value."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A backend, tried in a flag's place."""

    name: str
    source: Source = BY_HAND
    priority: int = 0
    """What it declares for this server; of several uses, the least."""
    reasons: tuple[Problem, ...] = ()
    """Everything that speaks against it; none: it fits."""
    unchecked: tuple[Problem, ...] = ()
    """What nobody knows. Under the policy `strict` it is among the reasons."""
    host_seq_lens: str | None = None
    """What the whole server needs with it; None where it could not be tried."""
    costs: str = ""
    """What that does on this server, or why it does nothing."""

    @property
    def fits(self) -> bool:
        """Whether nothing speaks against it."""
        return not self.reasons

    @property
    def sort_key(self) -> tuple[bool, int, str]:
        """Order candidates: those that fit, then the higher priority, then the name."""
        return (not self.fits, -self.priority, self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One flag that says `auto`."""

    flag: str
    """In its command-line spelling."""
    candidates: tuple[Candidate, ...]
    """Those that fit, best first; then the others, in the order that they would have."""
    unknown_facts: tuple[str, ...] = ()
    """The facts that nothing could be checked against."""

    @property
    def fitting(self) -> tuple[Candidate, ...]:
        """The candidates that nothing speaks against, best first."""
        return tuple(each for each in self.candidates if each.fits)

    @property
    def rejected(self) -> tuple[Candidate, ...]:
        """The candidates that something speaks against."""
        return tuple(each for each in self.candidates if not each.fits)

    @property
    def chosen(self) -> Candidate | None:
        """The best that fits; None where nothing does."""
        return next(iter(self.fitting), None)

    @property
    def tied(self) -> tuple[str, ...]:
        """Name those of the same priority, before which the chosen one goes by its name alone."""
        if self.chosen is None:
            return ()
        _, *others = self.fitting
        return tuple(each.name for each in others if each.priority == self.chosen.priority)

    def __str__(self) -> str:
        fit = f"{len(self.fitting)} of {len(self.candidates)} installed backends fit"
        if self.chosen is None:
            return f"{self.flag} auto finds no backend ({fit})"
        told = [f"priority {self.chosen.priority}", fit]
        if self.tied:
            told.append(f"by name before {', '.join(self.tied)}, of the same priority")
        return f"{self.flag} auto is {self.chosen.name} ({'; '.join(told)})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a server is configured by. Index it by a capability, or a capability and a phase."""

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
    """What was chosen where a flag said `auto`; the flags name it."""

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
        """Hash the values: equal plans have equal ones."""
        return hash(self.fingerprint)

    def __str__(self) -> str:
        """Write what a person asks first: rules, each value with its first cause, problems."""
        active: dict[str, list[tuple[Phase | None, Resolved]]] = {name: [] for name in IN_PLANS}
        for phase, own in self.values():
            active[own.capability] += [(phase, own)] if own.effect.active else []
        lines = [f"plan {self.fingerprint} under {self.rules}"]
        lines += [_line(name, values) for name, values in active.items() if values]
        idle = [name for name, values in active.items() if not values]
        lines += [f"  no effect here: {', '.join(idle)}"] if idle else []
        if self.problems:
            codes = ", ".join(dict.fromkeys(found.code for found in self.problems))
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
        """Whether the lengths themselves must cross to the host: SGLang's question."""
        return self.host_seq_lens is HostSeqLens.EXACT

    @property
    def unsafe_override(self) -> Capabilities:
        """What was put in the place of joined values, as `resolve` takes it."""
        return Capabilities.model_validate(dict(self.overrides))

    @property
    def host_seq_lens(self) -> HostSeqLens:
        """What the host is told about lengths."""
        level = self.server["host_seq_lens"].value
        assert isinstance(level, HostSeqLens), f"a plan holds {level!r}"
        return level

    def values(self) -> Iterator[tuple[Phase | None, Resolved]]:
        """List every value: the server's, then each phase's."""
        for phase, values in self.by_phase.items():
            yield from ((phase, resolved) for resolved in values.values())

    @property
    def fingerprint(self) -> str:
        """A digest of the values: equal plans configure equal servers."""
        values = [
            (phase.value if phase else "server", resolved.capability, text_of(resolved.value))
            for phase, resolved in self.values()
        ]
        return hashlib.sha256(json.dumps([self.rules.name, values]).encode()).hexdigest()[:16]

    def raised(self, capability: str, need: object, reason: str) -> Plan:
        """Return this plan with a server need joined with one of the engine's own."""
        own = self.server[capability]
        cause = Cause(
            kind=CauseKind.ENGINE, name=capability, value=need, reason=reason, origin=Origin.FORCED
        )
        server = {**self.server, capability: self._joined(own, need, (cause,))}
        return replace(self, by_phase={**self.by_phase, None: server})

    def join(self, other: Plan) -> Plan:
        """Join with another rank's plan: every need of either, the supports of both.

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

        def both(phase: Phase | None, own: Resolved) -> Resolved:
            theirs = other.by_phase[phase][own.capability]
            return self._joined(own, theirs.value, theirs.causes)

        return replace(
            self.with_values(both),
            uses=tuple(sorted({*self.uses, *other.uses}, key=lambda use: use.sort_key)),
            problems=in_order({*self.problems, *other.problems}),
            overrides=tuple(sorted({*self.overrides, *other.overrides}, key=repr)),
        )

    def _premises(self) -> Mapping[str, str]:
        """Write what plans that are joined must have in common."""
        flags = ", ".join(f"{name}={value}" for name, value in self.flags.given().items())
        names = ", ".join(rule.name for rule in self.rules.rules)
        rules = {"rules": self.rules.name, "rules of that set": names}
        return {**rules, "flags": flags, "policy": self.policy.value}

    def _joined(self, own: Resolved, value: object, causes: Iterable[Cause]) -> Resolved:
        """Join a value of this plan with another, which has these causes."""
        both = CAPABILITIES[own.capability].join(own.value, value)
        situation = self.flags.situation(self.facts)
        return self.resolved(situation, own.capability, both, (*own.causes, *causes))

    def resolved(
        self, situation: Situation, capability: str, value: object, causes: Sequence[Cause]
    ) -> Resolved:
        """Put a value and its causes together with what it does on this server."""
        effect = Effect(active=False, text="no use on this server reads it")
        if any(cause.kind is CauseKind.BACKEND for cause in causes):
            effect = effect_of(capability, value, self.rules, situation)
        return resolved_from(capability, value, causes, effect)

    def with_values(self, change: Callable[[Phase | None, Resolved], Resolved]) -> Plan:
        """Return this plan with each value put in the place of another, by phase."""
        changed = {
            phase: {name: change(phase, resolved) for name, resolved in values.items()}
            for phase, values in self.by_phase.items()
        }
        return replace(self, by_phase=changed)


def _line(name: str, active: Sequence[tuple[Phase | None, Resolved]]) -> str:
    """Write the values of a capability, and who gives them."""
    phases: dict[str, list[str]] = {}
    for phase, own in active:
        phases.setdefault(text_of(own.value), []).append(phase.value if phase else "")
    values = "; ".join(
        value if len(phases) == 1 else f"{value} in {' and '.join(those)}"
        for value, those in phases.items()
    )
    causes = dict.fromkeys(own.causes[0].name for _, own in active if own.causes)
    return f"  {name}: {values} ({', '.join(causes)})"


def resolved_from(
    capability: str, value: object, causes: Iterable[Cause], effect: Effect
) -> Resolved:
    """Put a value and its causes together: no cause twice, the deciding ones first."""
    kind = CAPABILITIES[capability]
    unique = sorted(set(causes), key=lambda c: (_weight(c, kind, value), *c.sort_key))
    if isinstance(value, Conflict):
        value = Conflict(tuple(sorted({c.name for c in unique if c.value != kind.best})))
    return Resolved(capability=capability, value=value, effect=effect, causes=tuple(unique))


def _weight(cause: Cause, kind: Kind, value: object) -> str:
    """Rank a cause: it alone gives the value, it takes something away, or it takes nothing."""
    if cause.kind is CauseKind.OVERRIDE:
        return "0"
    if kind.join(cause.value, value) == cause.value:
        return "1"
    return "2" if cause.value != kind.best else "3"


def in_order(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """Sort problems, so that plans of the same content are equal."""
    return tuple(sorted(problems, key=lambda found: (found.code, found.message, found.remedy)))
