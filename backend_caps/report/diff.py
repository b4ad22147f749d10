"""Differences between two sides: backends, capabilities, releases, rules and plans.

A side is a lock, or an engine that was read. A capability is stricter where the join of its values
before and after is the one after: the engine must do more, or may do less. Files and lines of
statements are shown and never compared: code that only moved is the same code.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Self

from backend_caps.capability.declaration import Declaration, Part
from backend_caps.capability.facts import text_of
from backend_caps.capability.kind import Phase, Role, Scope
from backend_caps.capability.provenance import Origin, Status
from backend_caps.capability.vocabulary import CAPABILITIES, Capabilities
from backend_caps.engines.reading import EngineReading
from backend_caps.report import lock
from backend_caps.report.difference import (
    NOWHERE,
    DifferenceDocument,
    DifferenceKind,
    Statement,
    WhereDocument,
    comparable,
    in_order,
    of_pair,
    severity,
    statement_of,
)
from backend_caps.report.launch_differences import of_launches
from backend_caps.report.plans import PlanDocument, ValueDocument
from backend_caps.report.words import decided_by, grouped, value_words
from backend_caps.resolution.rules import Rule

_CHANGED = DifferenceKind.CHANGED
_PRECEDENCE = (Status.OK, Status.CONFLICT, Status.BROKEN, Status.SKIPPED)
"""The order of several claims to one name; the first represents the name."""
_NO_DECLARATION = Declaration()
"""Stands in for a declaration that was not read."""
_NO_CLASS = lock.LockedClass(path="", registered_as=(), readings={}, attributes={}, composite=None)
"""Stands in for the class of a backend that was not read from an engine's class."""
_Claims = Sequence[lock.LockedBackend]
"""All claims to one name; the first represents the name."""
_Texts = Mapping[tuple[str, ...], str]
"""A side's texts, each by its subject, its field, and what else distinguishes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One side of a comparison; an engine that was read has no request."""

    engine: lock.LockedEngine | None
    backends: tuple[lock.LockedBackend, ...]
    problems: tuple[str, ...]
    rules: lock.LockedRules | None
    """None where the rules are not known."""
    request: lock.LockedRequest | None = None
    plan: PlanDocument | None = None

    @classmethod
    def of_lock(cls, document: lock.LockDocument) -> Self:
        """Take the side from a lock."""
        return cls(**{field.name: getattr(document, field.name) for field in fields(cls)})

    @classmethod
    def of_reading(cls, reading: EngineReading, plan: PlanDocument | None = None) -> Self:
        """Take the side from an engine that was read, and the plan of a server of it."""
        return cls(
            engine=lock.LockedEngine(name=reading.engine, version=reading.version),
            backends=tuple(map(lock.LockedBackend.of, reading.backends)),
            problems=lock.codes_of(reading.problems),
            rules=None if reading.rules is None else lock.LockedRules.model_validate(reading.rules),
            plan=plan,
        )


def differences(before: Side, after: Side) -> tuple[DifferenceDocument, ...]:
    """List the differences, the most important first."""
    found = [
        *_of_backends(_by_name(before.backends), _by_name(after.backends)),
        *_of_texts(_texts(before, after), _texts(after, before)),
    ]
    if before.plan is not None and after.plan is not None:
        found += _of_plans(before.plan, after.plan)
    if before.request is not None and after.request is not None:
        found += _of_texts(_request(before.request), _request(after.request), kind=_CHANGED)
    return in_order(found)


def _by_name(backends: Iterable[lock.LockedBackend]) -> Mapping[str, _Claims]:
    ordered = sorted(backends, key=lambda claim: (_PRECEDENCE.index(claim.status), _claim(claim)))
    return grouped((claim.name, claim) for claim in ordered)


def _claim(claim: lock.LockedBackend) -> str:
    parts = (claim.distribution, claim.version, claim.status.value, ", ".join(claim.problems))
    return " ".join(part for part in parts if part)


def _of_backends(
    before: Mapping[str, _Claims], after: Mapping[str, _Claims]
) -> Iterator[DifferenceDocument]:
    """Compare backends by name.

    An attribute that all classes of one side lack is one difference, not one for each class.
    """
    were, are = _attributes(before, after), _attributes(after, before)
    for name in were.keys() ^ are.keys():
        yield from of_pair(f"attribute {name}", "", were.get(name), are.get(name))
    for name in sorted({*before, *after}):
        one, other = before.get(name), after.get(name)
        is_class = any(claims and claims[0].engine_class for claims in (one, other))
        subject = f"{'class' if is_class else 'backend'} {name}"
        if one and other:
            yield from _of_backend(subject, one, other, were.keys() & are.keys())
        else:
            was, is_ = (claims[0] if claims else None for claims in (one, other))
            summary, summary_after = (None if b is None else _summary(b) for b in (was, is_))
            yield from of_pair(subject, "", summary, summary_after, _where(was, is_))


def _summary(backend: lock.LockedBackend) -> str:
    """Describe a backend that only one side has, in a line."""
    class_, declaration = backend.engine_class or _NO_CLASS, backend.declaration or _NO_DECLARATION
    states = {name: statement_of(backend, name) for name in CAPABILITIES if backend.declaration}
    faults = sorted({*backend.problems})
    parts = (
        "" if backend.status is Status.OK else ", ".join((backend.status.value, *faults)),
        f"registered as {', '.join(class_.registered_as)}" if class_.registered_as else "",
        f"hands its uses to {'; '.join(_parts(declaration))}" if declaration.parts else "",
        *(
            f"{name}: {state.words}"
            for name, state in states.items()
            if (state.origin is Origin.DECLARED or state.conditions)
            and CAPABILITIES[name].scope is not Scope.USE
        ),
    )
    return "; ".join(part for part in parts if part) or "declares nothing"


def _attributes(side: Mapping[str, _Claims], other: Mapping[str, _Claims]) -> Mapping[str, str]:
    """List the attributes of the classes that both sides have, with the classes that set them."""
    owners = grouped(
        (attribute, name)
        for name in sorted(side.keys() & other.keys())
        for attribute in (side[name][0].engine_class or _NO_CLASS).attributes
    )
    return {attribute: f"set by {', '.join(names)}" for attribute, names in owners.items()}


def _of_backend(
    subject: str, one: _Claims, other: _Claims, known: Iterable[str]
) -> Iterator[DifferenceDocument]:
    """Compare two backends of one name, with the attributes `known` to both sides."""
    was, is_ = one[0], other[0]
    where = _where(was, is_)
    if was.status is not is_.status:
        # A declaration that cannot be read counts as the worst.
        kind = DifferenceKind.STRICTER if was.status is Status.OK else _CHANGED
        kind = DifferenceKind.LOOSER if is_.status is Status.OK else kind
        yield from of_pair(subject, "status", was.status.value, is_.status.value, where, kind)
    single = _single_texts(subject, was, is_), _single_texts(subject, is_, was)
    yield from _of_texts(*single, where, _CHANGED)
    yield from _of_texts(_listed_texts(subject, one), _listed_texts(subject, other), where)
    class_, class_after = (backend.engine_class or _NO_CLASS for backend in (was, is_))
    for name in sorted(known):
        readings = class_.attributes.get(name), class_after.attributes.get(name)
        before, after = (None if r is None else _attribute_words(r) for r in readings)
        yield from of_pair(subject, name, before, after, _where(*readings), _CHANGED)
    if was.declaration is not None and is_.declaration is not None:
        for name in CAPABILITIES:
            where = _where(class_.readings.get(name), class_after.readings.get(name))
            states = statement_of(was, name), statement_of(is_, name)
            yield from _of_capability(subject, name, *states, where)


def _where(one: object, other: object) -> WhereDocument:
    """Return where two backends or readings are declared; either may be None."""
    before, after = (getattr(each, "declared_at", None) for each in (one, other))
    return WhereDocument(before=before, after=after)


def _single_texts(subject: str, backend: lock.LockedBackend, other: lock.LockedBackend) -> _Texts:
    """List the fields that have one text; of parts, those that `other` lacks."""
    declaration, class_ = backend.declaration or _NO_DECLARATION, backend.engine_class
    parts = {*_parts(declaration)} - {*_parts(other.declaration or _NO_DECLARATION)}
    texts = {
        "distribution": backend.distribution,
        # An engine's class has its file there, which may move.
        "implementation": None if class_ else declaration.implementation,
        "composite": class_.composite if class_ else None,
        "parts": "; ".join(sorted(parts)) or None,
    }
    return {(subject, field): text for field, text in texts.items() if text is not None}


def _listed_texts(subject: str, claims: _Claims) -> _Texts:
    """List the fields that have several texts, each by its field and its key."""
    first, *others = claims
    declaration, class_ = first.declaration or _NO_DECLARATION, first.engine_class or _NO_CLASS
    return {
        **{(subject, f"adapter for {name}"): text for name, text in declaration.adapters.items()},
        **{(subject, f"tolerance in {n}"): str(t) for n, t in declaration.tolerances.items()},
        **{(subject, "registered as", name): name for name in class_.registered_as},
        **{(subject, "further claim", claim): claim for claim in map(_claim, others)},
        **_problems(subject, first.problems),
    }


def _problems(subject: str, codes: Iterable[str]) -> _Texts:
    return {
        (subject, "problem", code): code if count == 1 else f"{code} ({count} times)"
        for code, count in Counter(codes).items()
    }


def _parts(declaration: Declaration) -> list[str]:
    """Write each part and condition once, with the uses that it takes."""
    parts = grouped(
        ((part.backend, "" if part.given is None else f" where {part.given}"), _uses(part))
        for part in declaration.parts
    )
    return sorted(
        f"{name} ({', '.join(sorted({*uses}))}){given}" for (name, given), uses in parts.items()
    )


def _uses(part: Part) -> str:
    roles = "every role" if len(part.roles) == len(Role) else text_of(part.roles)
    return roles if len(part.phases) == len(Phase) else f"{roles} in {text_of(part.phases)}"


def _attribute_words(reading: lock.LockedReading) -> str:
    words = reading.words if reading.value is None else reading.value
    if reading.origin is Origin.INHERITED:
        return f"{words} (inherited from {reading.inherited_from or 'a base'})"
    return words


def _of_capability(
    subject: str, name: str, one: Statement, other: Statement, where: WhereDocument
) -> Iterator[DifferenceDocument]:
    """Compare a value with its origin; its conditions are a difference of their own."""
    was, is_ = bool(one.conditions), bool(other.conditions)
    kind, changes = severity(name, one.value, other.value), []
    if kind is None and was is is_ and (one.origin, one.base) != (other.origin, other.base):
        kind = _CHANGED
    if kind is not None:
        changes.append((kind, one.words, other.words))
    if one.conditions != other.conditions:
        kind = _CHANGED
        if was is not is_:
            kind = DifferenceKind.BECAME_CONDITIONAL if is_ else DifferenceKind.BECAME_UNCONDITIONAL
        before, after = ("; ".join(side.conditions) or side.words for side in (one, other))
        changes.append((kind, before, after))
    for kind, before, after in changes:  # other values may have the same words
        yield DifferenceDocument(
            kind=kind, subject=subject, field=name, before=before, after=after, where=where
        )


def _texts(side: Side, other: Side) -> _Texts:
    """List a side's texts except for backends and plans, where the other side has such texts."""
    releases, others = _releases(side), _releases(other)
    texts: dict[tuple[str, ...], str] = {
        **_problems("environment", side.problems),
        # A release that only one side has is shown by its backends.
        **{(f"release {n}", "version"): releases[n] for n in releases.keys() & others.keys()},
    }
    if side.rules is not None and other.rules is not None:
        texts |= {(f"rule {name}", ""): text for name, text in _rules(side.rules.rules).items()}
        texts["rules", "overlapped algorithms"] = ", ".join(side.rules.relays) or "none"
    if side.request is not None and other.request is not None and side.plan is not None:
        texts["plan", ""] = "made"
    return texts


def _releases(side: Side) -> Mapping[str, str]:
    """List the versions of the engine and of distributions."""
    versions = grouped(
        (b.distribution, b.version or "unknown")
        for b in side.backends
        if b.distribution is not None
    )
    if side.engine is not None:
        versions[side.engine.name] = [side.engine.version or "unknown"]
    return {name: ", ".join(sorted({*listed})) for name, listed in versions.items()}


def _rules(rules: Iterable[Rule]) -> Mapping[str, str]:
    texts_by_name = grouped((rule.name, _rule_text(rule)) for rule in rules)
    return {name: "; ".join(sorted(texts)) for name, texts in texts_by_name.items()}


def _rule_text(rule: Rule) -> str:
    forced = ", ".join(f"{name}={text_of(value)}" for name, value in rule.forces.stated().items())
    return f"forces {forced} where {rule.given}: {rule.reason}"


def _request(request: lock.LockedRequest) -> _Texts:
    override = request.unsafe_override or Capabilities()
    texts = {
        "policy": request.policy.value,
        "rules": request.rules or "the engine's own",
        "engine": request.engine or "none",
        "command line": "none" if request.words is None else shlex.join(request.words),
        "model": request.model or "none",
        **{
            f"flag {name}": "none" if value is None else text_of(value)
            for name, value in request.flags.given().items()
        },
        **{f"fact {name}": text_of(value) for name, value in request.facts.known().items()},
        **{f"override {name}": text_of(value) for name, value in override.stated().items()},
    }
    return {("request", field): text for field, text in texts.items()}


def _of_plans(before: PlanDocument, after: PlanDocument) -> Iterator[DifferenceDocument]:
    values = {(phase, name): value for phase, name, value in after.all_values()}
    if before.launch is not None and after.launch is not None:
        yield from of_launches(before.launch, after.launch)
    for phase, name, value in before.all_values():
        if (phase, name) in values:
            subject = "plan" if phase is None else f"plan {phase}"
            yield from _of_plan_value(subject, name, value, values[phase, name])


def _of_plan_value(
    subject: str, name: str, one: ValueDocument, other: ValueDocument
) -> Iterator[DifferenceDocument]:
    """Compare a value, else the causes that keep it from the best, else its effect."""
    was, is_ = (comparable(name, value.of_capability(name)) for value in (one, other))
    words = _value_words(one), _value_words(other)
    kind = severity(name, was, is_)
    if kind is None and (was == CAPABILITIES[name].best or words[0] == words[1]):
        words = one.effect, other.effect
    yield from of_pair(subject, name, *words, kind=kind or _CHANGED)


def _value_words(value: ValueDocument) -> str:
    return f"{value_words(value)}, decided by {decided_by(value)}"


def _of_texts(
    before: _Texts,
    after: _Texts,
    where: WhereDocument = NOWHERE,
    kind: DifferenceKind | None = None,
) -> Iterator[DifferenceDocument]:
    """Compare all texts of two sides."""
    for key in sorted({*before, *after}):
        yield from of_pair(key[0], key[1], before.get(key), after.get(key), where, kind)
