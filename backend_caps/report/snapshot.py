"""What one side of a comparison holds, in values that can be compared: a lock, or an engine.

Places in source files are kept beside the values and never compared: code that only moved is
the same code.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Self

from backend_caps.capability.backend import Backend, EngineClass, Problem, Reading, Status
from backend_caps.capability.declaration import Declaration, Part, When
from backend_caps.capability.fit import text_of
from backend_caps.capability.kind import Phase, Role
from backend_caps.capability.provenance import Origin
from backend_caps.capability.scale import UNDECLARED
from backend_caps.capability.vocabulary import CAPABILITIES, Capabilities
from backend_caps.engines.reading import EngineReading
from backend_caps.report.document import value_of
from backend_caps.report.lock import LockDocument, LockedRequest
from backend_caps.report.plans import PlanDocument, ValueDocument
from backend_caps.report.words import decided_by, words_of
from backend_caps.resolution.contributions import declared
from backend_caps.resolution.rules import Rule

_PRECEDENCE = (Status.OK, Status.CONFLICT, Status.BROKEN, Status.SKIPPED)
"""Which of several claims a name stands for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CapabilityState:
    """The statement of one backend on one capability."""

    value: object
    """The join over both ways of every condition; None where a composite leaves it to its parts."""
    base: str
    """What holds where no condition does, in words."""
    origin: Origin
    """`DECLARED`, `INHERITED` or `UNDECLARED`: of what holds where no condition does."""
    conditions: tuple[str, ...]
    """What holds under conditions, in words, sorted."""
    words: str
    """The value and its origin, as people read them."""
    where: str | None

    @property
    def is_stated(self) -> bool:
        """Whether the backend states anything of it, even on a condition."""
        return self.origin is Origin.DECLARED or bool(self.conditions)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttributeState:
    """An attribute of an engine's class, by the engine's own name."""

    words: str
    where: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendState:
    """What a backend's name stands for."""

    is_class: bool
    """Whether it is a class of an engine, and no name that flags use."""
    status: Status
    distribution: str | None
    others: tuple[str, ...]
    """The further claims to the name, in words, sorted."""
    capabilities: Mapping[str, CapabilityState]
    """Empty where the declaration was not read."""
    parts: tuple[str, ...]
    """The backends that a composite hands its uses to, and when, sorted."""
    implementation: str | None
    adapters: Mapping[str, str]
    """By engine, what makes it one of that engine's own."""
    tolerances: Mapping[str, str]
    """By dtype, how far an output may be from float64's."""
    registered_as: tuple[str, ...]
    attributes: Mapping[str, AttributeState]
    composite: str | None
    problems: Mapping[str, int]
    """How many there are, by code."""
    where: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanValue:
    """One value of a plan."""

    value: object
    words: str
    """The value and what decided it."""
    effect: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Everything that two sides are compared by."""

    backends: Mapping[str, BackendState]
    releases: Mapping[str, str]
    """The versions of distributions and of the engine, by name."""
    rules: Mapping[str, str] | None
    """What each rule forces, in words; None where the rules are not known."""
    relays: tuple[str, ...]
    """The speculative algorithms whose steps overlap, sorted."""
    problems: Mapping[str, int]
    """How many there are that no single backend can be blamed for, by code."""
    request: Mapping[str, str] | None = None
    """The request, in words; None where there was none."""
    plan: Mapping[tuple[str, str], PlanValue] | None = None
    """By place and capability; None where there is no plan."""

    @classmethod
    def of_lock(cls, lock: LockDocument) -> Self:
        """Read a lock as one side of a comparison."""
        backends = tuple(locked.backend() for locked in lock.backends)
        engine = {} if lock.engine is None else {lock.engine.name: lock.engine.version}
        return cls(
            backends=_backends(backends),
            releases=_releases(backends, engine),
            rules=_rules(lock.rules.rules),
            relays=lock.rules.relays,
            problems=Counter(lock.problems),
            request=_request(lock.request),
            plan=None if lock.plan is None else _plan(lock.plan),
        )

    @classmethod
    def of_reading(cls, reading: EngineReading) -> Self:
        """Read an engine as one side of a comparison."""
        rules = reading.rules
        return cls(
            backends=_backends(reading.backends),
            releases=_releases(reading.backends, {reading.engine: reading.version}),
            rules=None if rules is None else _rules(rules.rules),
            relays=() if rules is None else tuple(sorted(rules.relays)),
            problems=_counted(reading.problems),
        )


def _backends(backends: Iterable[Backend]) -> Mapping[str, BackendState]:
    claims: dict[str, list[Backend]] = {}
    for backend in backends:
        claims.setdefault(backend.name, []).append(backend)
    return {name: _backend(sorted(claims[name], key=_standing)) for name in sorted(claims)}


def _standing(backend: Backend) -> tuple[int, str]:
    return _PRECEDENCE.index(backend.status), _claim(backend)


def _claim(backend: Backend) -> str:
    codes = ", ".join(sorted(found.code for found in backend.problems))
    fields = (backend.source.distribution or "", backend.source.version or "", backend.status.value)
    return " ".join(part for part in (*fields, codes) if part)


def _backend(claims: list[Backend]) -> BackendState:
    """Describe what a name stands for: the first of the claims to it."""
    backend = claims[0]
    is_class = backend.engine_class is not None
    read = backend.engine_class or EngineClass(path="")
    declaration = backend.declaration
    return BackendState(
        is_class=is_class,
        status=backend.status,
        distribution=backend.source.distribution,
        others=tuple(sorted(map(_claim, claims[1:]))),
        capabilities={}
        if declaration is None
        else {
            name: _capability(declaration, name, read.readings.get(name)) for name in CAPABILITIES
        },
        parts=() if declaration is None else _parts(declaration.parts),
        # That of an engine's class names the file, which may move.
        implementation=None if declaration is None or is_class else declaration.implementation,
        adapters={} if declaration is None else dict[str, str](declaration.adapters.items()),
        tolerances={
            dtype: str(bound)
            for dtype, bound in (declaration.tolerances if declaration else {}).items()
        },
        registered_as=tuple(sorted(read.registered_as)),
        attributes={name: _attribute(each) for name, each in sorted(read.attributes.items())},
        composite=read.composite,
        problems=_counted(backend.problems),
        where=backend.source.declared_at,
    )


def _counted(problems: Iterable[Problem]) -> Mapping[str, int]:
    return Counter(found.code for found in problems)


def _parts(parts: Iterable[Part]) -> tuple[str, ...]:
    """Write each part with its condition once, and the uses that it takes."""
    taken: dict[tuple[str, str], set[str]] = {}
    for part in parts:
        condition = "" if part.given is None else f" where {part.given}"
        taken.setdefault((part.backend, condition), set()).add(_uses(part))
    return tuple(
        sorted(
            f"{backend} ({', '.join(sorted(uses))}){condition}"
            for (backend, condition), uses in taken.items()
        )
    )


def _uses(part: Part) -> str:
    roles = "every role" if len(part.roles) == len(Role) else text_of(part.roles)
    return roles if len(part.phases) == len(Phase) else f"{roles} in {text_of(part.phases)}"


def _capability(
    declaration: Declaration, capability: str, reading: Reading | None
) -> CapabilityState:
    conditions = tuple(
        sorted(
            _condition(when, capability)
            for when in declaration.conditions
            if capability in when.capabilities.stated()
        )
    )
    if not conditions and reading is not None and reading.origin is Origin.CONDITIONAL:
        conditions = (reading.words,)
    origin = _origin(declaration, capability, reading)
    base = text_of(declaration.capabilities.stated().get(capability, UNDECLARED))
    is_silent = origin is Origin.UNDECLARED and not conditions
    if declaration.parts and is_silent:
        value, words = None, "left to its parts"
    else:
        value = comparable(capability, declared(declaration, capability, {})[0])
        words = _words(value, base, origin, reading, is_conditional=bool(conditions))
    return CapabilityState(
        value=value,
        base=base,
        origin=origin,
        conditions=conditions,
        words=words,
        where=None if reading is None else reading.declared_at,
    )


def comparable(capability: str, value: object) -> object:
    """Write a value in the one form that equal values have: joined with the best."""
    kind = CAPABILITIES[capability]
    return kind.join(kind.best, value)


def _condition(when: When, capability: str) -> str:
    value = text_of(when.capabilities.stated()[capability])
    held = f"{value} where {when.given}"
    return held if str(when.given) in when.reason else f"{held}: {when.reason}"


def _origin(declaration: Declaration, capability: str, reading: Reading | None) -> Origin:
    if reading is not None and reading.origin is Origin.INHERITED:
        return Origin.INHERITED
    is_stated = capability in declaration.capabilities.stated()
    return Origin.DECLARED if is_stated else Origin.UNDECLARED


def _words(
    value: object, base: str, origin: Origin, reading: Reading | None, *, is_conditional: bool
) -> str:
    text = text_of(value)
    if is_conditional:
        return f"{text} on a condition, else {base}"
    if origin is Origin.DECLARED:
        return text
    owner = None if reading is None else reading.inherited_from
    source = f"inherited from {owner}" if origin is Origin.INHERITED and owner else origin.value
    return f"{source}, counts as {text}"


def _attribute(reading: Reading) -> AttributeState:
    words = reading.words if reading.value is None else text_of(reading.value)
    if reading.origin is Origin.INHERITED:
        words = f"{words} (inherited from {reading.inherited_from or 'a base'})"
    return AttributeState(words=words, where=reading.declared_at)


def _releases(backends: Iterable[Backend], engine: Mapping[str, str | None]) -> Mapping[str, str]:
    versions: dict[str, set[str]] = {
        name: {version or "unknown"} for name, version in engine.items()
    }
    for source in (backend.source for backend in backends):
        if source.distribution is not None and source.distribution not in engine:
            versions.setdefault(source.distribution, set()).add(source.version or "unknown")
    return {name: ", ".join(sorted(versions[name])) for name in sorted(versions)}


def _rules(rules: Iterable[Rule]) -> Mapping[str, str]:
    texts: dict[str, list[str]] = {}
    for rule in rules:
        texts.setdefault(rule.name, []).append(_rule(rule))
    return {name: "; ".join(sorted(texts[name])) for name in sorted(texts)}


def _rule(rule: Rule) -> str:
    forced = ", ".join(f"{name}={text_of(v)}" for name, v in rule.forces.stated().items())
    return f"forces {forced} where {rule.given}: {rule.reason}"


def _request(request: LockedRequest) -> Mapping[str, str]:
    override = request.unsafe_override or Capabilities()
    return {
        "policy": request.policy.value,
        "rules": request.rules or "the engine's own",
        "engine": request.engine or "none",
        **{
            f"flag {name}": "none" if value is None else text_of(value)
            for name, value in request.flags.given().items()
        },
        **{f"fact {name}": text_of(value) for name, value in request.facts.known().items()},
        **{f"override {name}": text_of(value) for name, value in override.stated().items()},
    }


def _plan(plan: PlanDocument) -> Mapping[tuple[str, str], PlanValue]:
    return {
        (phase or "server", name): _plan_value(name, own) for phase, name, own in plan.all_values()
    }


def _plan_value(capability: str, own: ValueDocument) -> PlanValue:
    return PlanValue(
        value=comparable(capability, value_of(capability, own.value)),
        words=f"{words_of(own.value)}, decided by {decided_by(own)}",
        effect=own.effect,
    )
