"""A backend tried in a flag's place: what would be wrong with the server, and what it would cost.

No rule is written again here. A candidate is put where the flag says `auto`, the server is
resolved, and what is wrong then and was not before is the candidate's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache

from backend_caps.capability.backend import Backend, Problem, Status
from backend_caps.capability.declaration import Declaration
from backend_caps.capability.facts import Facts, Situation
from backend_caps.capability.fit import text_of
from backend_caps.capability.kind import Role
from backend_caps.capability.provenance import BY_HAND
from backend_caps.capability.spelling import AUTO
from backend_caps.capability.vocabulary import CAPABILITIES, Capabilities
from backend_caps.errors import BackendCapsError
from backend_caps.resolution.choice import Candidate
from backend_caps.resolution.contributions import cause_of_use
from backend_caps.resolution.engine import option_of
from backend_caps.resolution.errors import RoleError, leaves_of
from backend_caps.resolution.flags import ServerFlags
from backend_caps.resolution.plan import Plan, Policy, in_order
from backend_caps.resolution.problems import RoleFault, not_known, role_faults, unknown_facts
from backend_caps.resolution.remedies import Remedy, with_declared
from backend_caps.resolution.resolver import resolve
from backend_caps.resolution.rules import RuleSet
from backend_caps.resolution.uses import Use, made_of, unread, uses_of


@cache
def _perfect() -> Backend:
    """Make what stands where nothing is chosen yet: it takes everything, and is never to blame."""
    best = {name: kind.best for name, kind in CAPABILITIES.items()}
    declaration = Declaration(capabilities=Capabilities.model_validate(best))
    return Backend(name=AUTO, status=Status.OK, source=BY_HAND, declaration=declaration)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A server, and what is installed for it."""

    backends: Mapping[str, Backend]
    flags: ServerFlags
    rules: RuleSet | None
    facts: Facts

    def uses(self) -> tuple[Use, ...]:
        """List the uses, those left out whose conditions are known to fail."""
        known = {**self.backends, AUTO: _perfect()}
        return tuple(made_of(uses_of(self.flags, known), self.situation))

    @property
    def situation(self) -> Situation:
        """What is known of it."""
        return self.flags.situation(self.facts)

    def resolved(self, uses: Iterable[Use]) -> Plan:
        """Resolve some uses of it, keeping problems as data."""
        return resolve(uses, self.flags, rules=self.rules, facts=self.facts, policy=Policy.QUIET)

    def named(self, field: str, name: str | None) -> Setting:
        """Put a name into one of its flags."""
        return replace(self, flags=self.flags.updated({field: name}))

    def unknown_facts(self) -> tuple[str, ...]:
        """Name the facts that backends are checked against and nobody said."""
        return unknown_facts(self.flags, self.facts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What is wrong with a server whatever stands in a flag's place."""

    alone: frozenset[Problem]
    """With the flag's uses, were there no others."""
    whole: frozenset[Problem]
    """With all of them."""

    @classmethod
    def of(cls, setting: Setting, field: str) -> Known | None:
        """Resolve the server as if a perfect backend stood there; None where none would run."""
        uses = setting.uses()
        own = [use for use in uses if is_of(use, field, AUTO)]
        if not own:
            return None
        return cls(
            alone=frozenset(setting.resolved(own).problems),
            whole=frozenset(setting.resolved(uses).problems),
        )


def is_of(use: Use, field: str, name: str) -> bool:
    """Tell whether a flag put a use there by this name, as itself or by its parts."""
    return use.slot == option_of(field) and (*use.via, use.backend)[0] == name


def candidate(setting: Setting, field: str, backend: Backend, known: Known) -> Candidate:
    """Try a backend in a flag's place.

    Args:
        setting: the server; its flag says `auto`.
        field: the flag, by the name of `ServerFlags`.
        backend: what to try.
        known: what is wrong whatever is chosen.
    """
    tried = Candidate(name=backend.name, source=backend.source)
    if backend.status is not Status.OK:
        return replace(tried, reasons=unread(backend))
    with_it = setting.named(field, backend.name)
    try:
        uses = with_it.uses()
    except (BackendCapsError, ExceptionGroup) as error:
        return replace(tried, reasons=tuple(_unusable(fault) for fault in leaves_of(error)))
    return _tried(tried, with_it, field, uses, known)


def _tried(
    tried: Candidate, with_it: Setting, field: str, uses: tuple[Use, ...], known: Known
) -> Candidate:
    """Take what is wrong with the candidate's uses alone, and with those of the others beside it.

    Alone first: a limit of somebody else's could hide the candidate's own.
    """
    own = [use for use in uses if is_of(use, field, tried.name)]
    faults = role_faults(own, with_it.situation)
    alone = with_it.resolved(_in_their_roles(own, faults))
    whole = with_it.resolved(_in_their_roles(uses, faults))
    codes = {found.code for found in alone.problems}
    found = {
        *(_of_role(fault) for fault in faults.values()),
        *(each for each in alone.problems if each not in known.alone),
        *(each for each in whole.problems if each not in known.whole and each.code not in codes),
        *not_known(own, with_it.flags, with_it.facts),
    }
    ordered = in_order(found)
    mirror = whole["host_seq_lens"]
    return replace(
        tried,
        priority=_priority(own, with_it.situation),
        reasons=tuple(each for each in ordered if not each.is_open),
        unchecked=tuple(each for each in ordered if each.is_open),
        host_seq_lens=text_of(mirror.value),
        costs=str(mirror.effect),
    )


def _in_their_roles(uses: Iterable[Use], faults: Mapping[RoleFault, RoleError]) -> tuple[Use, ...]:
    """Grant the roles at fault, so that everything else that is wrong is found too."""
    every_role = Capabilities(roles=frozenset(Role))
    return tuple(
        with_declared(use, [Remedy(text="", backend=use.backend, declares=every_role)])
        if (use.backend, use.slot, use.role) in faults
        else use
        for use in uses
    )


def _priority(uses: Iterable[Use], situation: Situation) -> int:
    """Return what is declared for every use; a composite's own goes before that of its parts."""
    stated = [
        (not (use.adds_only and not use.via), cause.value)
        for use in uses
        if (cause := cause_of_use(use, "auto_priority", situation)) is not None
    ]
    of_parts = all(is_part for is_part, _ in stated)
    values = [value for is_part, value in stated if is_part is of_parts]
    assert all(isinstance(value, int) for value in values), f"no priority: {values}"
    return min((value for value in values if isinstance(value, int)), default=0)


def _of_role(fault: RoleError) -> Problem:
    takes = ", ".join(fault.takes)
    return Problem(
        code="role-unsupported",
        message=f"backend {fault.backend!r} does not take the role {fault.role!r}; it takes: "
        f"{takes}.",
        remedy="Name another backend for that role.",
        actual=fault.role,
        needed=takes,
    )


def _unusable(fault: BackendCapsError) -> Problem:
    return Problem(
        code="composite-unusable",
        message=f"it is a composite that cannot be used: {fault}",
        remedy="Repair its parts, or name another backend.",
    )
