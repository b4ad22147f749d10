"""A rank's statement: its digest crosses first, its fields and values only where digests differ.

Each field carries its treatment: whether it must be equal on every rank, is reported where it
differs, or is not compared.
"""

from __future__ import annotations

import hashlib
import json
import pickle
import platform
import socket
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import TypeAlias

from backend_caps.capability.facts import text_of
from backend_caps.capability.kind import Phase
from backend_caps.report.document import legible
from backend_caps.resolution.flags import ServerFlags
from backend_caps.resolution.plan import Cause, Plan, Resolved
from backend_caps.resolution.uses import Use
from backend_caps.startup.errors import RankNumbers

VERSION = "backend-caps"
"""The field with the release of backend-caps that a rank runs."""
FLAG = "flag "
"""The prefix of fields that are server flags; a flag with its default value has no field."""
_MACHINE_FACTS = frozenset({"device", "compute_capability", "rocm"})
"""Facts of the machine, in which ranks may differ; the others are facts of the model."""


class Treatment(Enum):
    """How a difference between ranks in a field is treated."""

    EQUAL = "equal"
    """The field must be the same on all ranks; a rank without it differs."""
    EQUAL_WHERE_STATED = "equal where stated"
    """It must be the same on the ranks that state it; a rank states only what it uses."""
    REPORTED = "reported"
    """It may differ; the plan then has a problem that reports the difference."""
    PER_RANK = "per rank"
    """It is not compared."""


Fields: TypeAlias = Mapping[str, tuple[Treatment, str]]
"""Treatment and value of each field, by name."""


def host_name() -> str:
    """Return this machine's host name."""
    return socket.gethostname()


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """What a rank sends to the others, before anything is captured."""

    host: str = field(default_factory=host_name)
    """The rank's host name."""
    fields: Fields
    """What the rank is configured with."""
    fingerprint: str = ""
    """The digest of the plan's values; empty where there is no plan."""
    failure: str | None = None
    """The errors that left the rank without a plan."""
    values: Mapping[tuple[Phase | None, str], Resolved] = field(default_factory=dict)
    """The plan's values by phase and capability, set by `at_length`; causes are without the path
    of their declaration, which may differ between machines."""
    ranks: RankNumbers = ()
    """The ranks that sent the same digest, set by the receiver."""

    def at_length(self, plan: Plan | None) -> Statement:
        """Return the statement as it is sent: with the plan's values, where there is a plan."""
        values = () if plan is None else plan.values()
        stated = {
            (phase, own.capability): replace(own, causes=tuple(map(without_path, own.causes)))
            for phase, own in values
        }
        return replace(self, values=stated)

    @classmethod
    def read(cls, payload: bytes) -> Statement:
        """Read a rank's statement; one of another release becomes a single field that differs."""
        with suppress(Exception):  # another release's classes may raise any error
            statement = pickle.loads(payload)  # noqa: S301 - as torch's own collectives of objects do
            if isinstance(statement, cls):
                return statement
        release = (Treatment.EQUAL, "one whose statements are not known here")
        return cls(host="", fields={VERSION: release})

    @property
    def mark(self) -> int:
        """A digest of all fields that are not per rank, as an int64 that is not negative."""
        compared = sorted(
            (name, value)
            for name, (treatment, value) in self.fields.items()
            if treatment is not Treatment.PER_RANK
        )
        text = json.dumps([compared, self.fingerprint, self.failure])
        # Not negative, so that its negation is an int64 too: `agree_over` compares both.
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) >> 1


def without_path(cause: Cause) -> Cause:
    """Return a cause without its declaration's path, which may differ between machines."""
    source = cause.source
    if source is not None:
        is_installed = source.distribution is not None
        source = replace(source, declared_at=None) if is_installed else None
    return replace(cause, source=source)


def statement_of(
    plan: Plan,
    *,
    given: ServerFlags | None = None,
    arguments: Mapping[str, object] | None = None,
    per_rank: frozenset[str] = frozenset(),
) -> Statement:
    """Return the statement of a rank with this plan.

    Args:
        plan: the rank's plan.
        given: the flags as they were given, before anything was chosen; else the plan's.
        arguments: what else a rank is configured with, by name.
        per_rank: names of flags, facts and arguments in which ranks may differ.
    """
    rules, overrides = plan.rules, (f"{name}={text_of(value)}" for name, value in plan.overrides)
    family = rules.name.partition("-")[0]
    equal = {
        "policy": plan.policy.value,
        "unsafe_override": ", ".join(overrides) or "none",
        # The installed engine whose rules these are.
        "engine": f"{family} {_version_of(family)}",
        "per_rank": ", ".join(sorted(per_rank)) or "none",
        # Beside the name, because two rule sets may have one name.
        "rules": rules.name,
        "rules of that set": ", ".join(sorted(rule.name for rule in rules.rules)),
        "algorithms": ", ".join(sorted(rules.algorithms)),
        "overlapped algorithms": ", ".join(sorted(rules.relays)),
    }
    equal_where_stated = {
        **{f"rule {rule.name}": f"of digest {rule.digest}" for rule in rules.rules},
        # Ranks may run different backends, but not different releases of one backend.
        **{f"backend {use.backend}": _release(use) for use in plan.uses},
    }
    reported = {
        f"choice for {choice.flag}": choice.fitting[0].name if choice.fitting else "none"
        for choice in plan.choices
    }
    facts = {f"fact {name}": text_of(value) for name, value in plan.facts.known().items()}
    # All ranks serve one model, and may do so on different machines.
    facts_per_rank = {f"fact {name}" for name in _MACHINE_FACTS | per_rank}
    fields = {
        **_treated(Treatment.EQUAL, equal),
        **_treated(Treatment.EQUAL_WHERE_STATED, equal_where_stated),
        **_treated(Treatment.REPORTED, reported),
        "python": (Treatment.PER_RANK, platform.python_version()),
        "host": (Treatment.PER_RANK, host_name()),
        **_treated(Treatment.EQUAL_WHERE_STATED, facts, facts_per_rank),
        **start_fields(plan.flags if given is None else given, arguments or {}, per_rank),
    }
    return Statement(fields=fields, fingerprint=plan.digest)


def failure_of(error: Exception, fields: Fields | None = None) -> Statement:
    """Return the statement of a rank without a plan, with every error of an exception group.

    Args:
        error: what was raised.
        fields: what the rank was started with, where the others state it too.
    """
    return Statement(fields=fields or {}, failure=legible("; ".join(_faults(error))))


def start_fields(
    given: ServerFlags, arguments: Mapping[str, object], per_rank: frozenset[str]
) -> Fields:
    """Return the fields that a rank knows before it has a plan.

    Args:
        given: the flags as they were given, before anything was chosen.
        arguments: what else the rank is configured with, by name.
        per_rank: names of flags and arguments in which ranks may differ.
    """
    # A rank that is given a flag's default value explicitly does not differ.
    defaults = {name: field.default for name, field in ServerFlags.model_fields.items()}
    flags = {f"{FLAG}{name}": value for name, value in given if value != defaults[name]}
    return {
        VERSION: (Treatment.EQUAL, _version_of("backend-caps")),
        **_treated(Treatment.EQUAL, flags, {f"{FLAG}{name}" for name in per_rank}),
        **_treated(Treatment.EQUAL, arguments, per_rank),
    }


def _faults(error: Exception) -> Iterator[str]:
    if isinstance(error, ExceptionGroup):
        for inner in error.exceptions:
            yield from _faults(inner)
    else:
        yield f"{type(error).__name__}: {error}".removesuffix(".")


def _treated(
    treatment: Treatment, values: Mapping[str, object], per_rank: Collection[str] = ()
) -> Fields:
    """Return values as fields with a treatment, `PER_RANK` for the names in `per_rank`."""
    return {
        name: (Treatment.PER_RANK if name in per_rank else treatment, legible(f"{value}"))
        for name, value in values.items()
    }


def _release(use: Use) -> str:
    if use.declaration is None:
        return "not read" if use.problem is None else f"not read ({use.problem.code})"
    release = " ".join(filter(None, (use.source.distribution, use.source.version)))
    return f"{release or 'by hand'}, declaration {use.declaration.digest}"


@cache
def _version_of(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "not installed"
