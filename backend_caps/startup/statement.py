"""What one rank states: a digest first, and its fields and values where not all ranks have one.

A field's treatment is stated with it, and nowhere else: whether it must be the same on every rank,
is joined, or is the rank's own.
"""

from __future__ import annotations

import hashlib
import json
import pickle
import platform
import socket
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import TypeAlias

from backend_caps.capability.facts import Facts, text_of
from backend_caps.capability.kind import Phase
from backend_caps.report.document import legible
from backend_caps.resolution.flags import ServerFlags
from backend_caps.resolution.plan import Cause, Plan, Resolved
from backend_caps.resolution.uses import Use

VERSION = "backend-caps"
"""The field that says which release a rank runs."""
FLAG = "flag "
"""What the fields of server flags begin with; a flag that is a default has none."""
_OF_THE_MACHINE = frozenset({"device", "compute_capability", "rocm"})
"""The facts that are not the model's."""


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


Fields: TypeAlias = Mapping[str, tuple[Treatment, str]]
"""By name, what is done about a difference, and what a rank has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """What a rank says first, before anything is captured."""

    host: str
    fields: Fields
    fingerprint: str = ""
    """The plan's; none where there is no plan."""
    failure: str | None = None
    """What was raised where a plan was to be."""
    values: tuple[tuple[Phase | None, Resolved], ...] = ()
    """The plan's, where the statement crosses at length; a cause is without the path of its
    declaration, which is a machine's own."""

    def at_length(self, plan: Plan | None) -> Statement:
        """Return it as it crosses: with the values of the plan, where there is one."""
        values = () if plan is None else plan.values()
        return replace(
            self,
            fields={name: (how, legible(own)) for name, (how, own) in self.fields.items()},
            failure=None if self.failure is None else legible(self.failure),
            values=tuple(
                (phase, replace(own, causes=tuple(map(without_path, own.causes))))
                for phase, own in values
            ),
        )

    @classmethod
    def read(cls, said: bytes) -> Statement:
        """Read what a rank of this job sent; another release's is one field that differs."""
        with suppress(Exception):  # whatever another release's classes raise
            read = pickle.loads(said)  # noqa: S301 - as torch's own collectives of objects do
            if isinstance(read, cls):
                return read
        version = (Treatment.EQUAL, "one whose statements are not known here")
        return cls(host="", fields={VERSION: version})

    @property
    def mark(self) -> int:
        """A digest of what is compared or joined, as an int64 that is not negative."""
        compared = sorted(
            (name, value)
            for name, (treatment, value) in self.fields.items()
            if treatment is not Treatment.PER_RANK
        )
        said = json.dumps([compared, self.fingerprint, self.failure])
        return int.from_bytes(hashlib.sha256(said.encode()).digest()[:8]) >> 1


def without_path(cause: Cause) -> Cause:
    """Leave out where a declaration stands, which is a machine's own."""
    own = cause.source
    source = None if own is None or own.distribution is None else replace(own, declared_at=None)
    return replace(cause, source=source)


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
        per_rank: names of flags, facts and arguments in which ranks may differ.
    """
    rules, overrides = plan.rules, (f"{name}={text_of(value)}" for name, value in plan.overrides)
    equal = {
        "policy": plan.policy.value,
        "unsafe_override": ", ".join(overrides) or "none",
        "engine": _engine(plan),
        "per_rank": ", ".join(sorted(per_rank)) or "none",
        # What an engine does, and what its flags force: two sets may have one name.
        "rules": rules.name,
        "rules of that set": ", ".join(sorted(rule.name for rule in rules.rules)),
        "algorithms": ", ".join(sorted(rules.algorithms)),
        "overlapped algorithms": ", ".join(sorted(rules.relays)),
    }
    equal_where_stated = {
        **{f"rule {rule.name}": f"of digest {rule.digest}" for rule in rules.rules},
        # Two ranks may run two backends, but not two releases of one.
        **{f"backend {use.backend}": _release(use) for use in plan.uses},
    }
    told = {
        f"choice for {choice.flag}": choice.fitting[0].name if choice.fitting else "none"
        for choice in plan.choices
    }
    own = {"python": platform.python_version(), "host": host_name()}
    fields = {
        **_treated(Treatment.EQUAL, equal),
        **_treated(Treatment.EQUAL_WHERE_STATED, equal_where_stated),
        **_treated(Treatment.TOLD, told),
        **_treated(Treatment.PER_RANK, own),
        **_facts(plan.facts, per_rank),
        **start_fields(plan.flags if given is None else given, arguments or {}, per_rank),
    }
    return Statement(host=host_name(), fields=fields, fingerprint=plan.fingerprint)


def last_statement(joint: Plan) -> Statement:
    """Write what a rank says that has come to a joint plan."""
    fields = {"joint plan": (Treatment.EQUAL, joint.fingerprint)}
    return Statement(host=host_name(), fields=fields)


def failure_of(error: Exception, fields: Fields | None = None) -> Statement:
    """Write what a rank without a plan says: every fault, where there are several.

    Args:
        error: what was raised.
        fields: what the rank was started with, where the others state it too.
    """
    return Statement(host=host_name(), fields=fields or {}, failure="; ".join(_faults(error)))


def start_fields(
    given: ServerFlags, arguments: Mapping[str, object], per_rank: frozenset[str]
) -> Fields:
    """List what a rank is started with, which is known before it has a plan.

    Args:
        given: the flags as they were given, before anything was chosen.
        arguments: what else it is configured with, by name.
        per_rank: names of flags and arguments in which ranks may differ.
    """
    # Who says what holds anyway does not differ.
    defaults = {name: field.default for name, field in ServerFlags.model_fields.items()}
    said = {name: value for name, value in given if value != defaults[name]}
    return {
        VERSION: (Treatment.EQUAL, _version_of("backend-caps")),
        **_given(FLAG, said, per_rank),
        **_given("", arguments, per_rank),
    }


def _faults(error: Exception) -> Iterator[str]:
    if isinstance(error, ExceptionGroup):
        for inner in error.exceptions:
            yield from _faults(inner)
    else:
        yield f"{type(error).__name__}: {error}".removesuffix(".")


def _treated(treatment: Treatment, values: Mapping[str, str]) -> Fields:
    return {name: (treatment, value) for name, value in values.items()}


def _engine(plan: Plan) -> str:
    """Name the installed engine whose rules these are."""
    family = plan.rules.name.partition("-")[0]
    return f"{family} {_version_of(family)}"


def _given(kind: str, values: Mapping[str, object], per_rank: frozenset[str]) -> Fields:
    return {
        f"{kind}{name}": (Treatment.PER_RANK if name in per_rank else Treatment.EQUAL, f"{value}")
        for name, value in values.items()
    }


def _facts(facts: Facts, per_rank: frozenset[str]) -> Fields:
    """Say what is known: a model is one for all ranks, and a machine is the rank's own."""
    return {
        f"fact {name}": (
            Treatment.PER_RANK
            if name in _OF_THE_MACHINE or name in per_rank
            else Treatment.EQUAL_WHERE_STATED,
            text_of(value),
        )
        for name, value in facts.known().items()
    }


def _release(use: Use) -> str:
    if use.declaration is None:
        return "not read" if use.problem is None else f"not read ({use.problem.code})"
    shipped = " ".join(own for own in (use.source.distribution, use.source.version) if own)
    return f"{shipped or 'by hand'}, declaration {use.declaration.digest}"


@cache
def _version_of(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "not installed"


def host_name() -> str:
    """Name this machine, as others know it."""
    return socket.gethostname()
