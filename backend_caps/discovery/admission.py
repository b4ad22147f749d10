"""Which claims are let in: the allow-list, and names that are claimed more than once."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from backend_caps.capability.status import Problem, Status
from backend_caps.discovery import problems
from backend_caps.discovery.claims import BACKENDS, Claim, Scan
from backend_caps.discovery.metadata import normalised

PLUGINS = "BACKEND_CAPS_PLUGINS"
"""The environment variable that names the distributions to use, separated by commas."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllowList:
    """The distributions that may be loaded, normalised."""

    name: str
    """What the list is called where it was written."""
    allowed: frozenset[str]

    @classmethod
    def named(cls, name: str, distributions: Iterable[str]) -> AllowList:
        """Allow these distributions, whatever the spelling of their names."""
        names = map(normalised, distributions)
        return cls(name=name, allowed=frozenset(each for each in names if each))

    @classmethod
    def of(
        cls, allow: Collection[str] | AllowList | None, environ: Mapping[str, str]
    ) -> AllowList | None:
        """Take the caller's list, else the environment's; None allows all.

        An empty list allows nothing: what is set and blank was meant to keep plugins out.
        """
        if isinstance(allow, AllowList):
            return allow
        if allow is not None:
            return cls.named("allow", allow)
        return cls.named(PLUGINS, environ[PLUGINS].split(",")) if PLUGINS in environ else None


def admit(scanned: Scan, allow: AllowList | None) -> Scan:
    """Refuse what is not allowed, and then what several still claim."""
    if allow is not None:
        scanned = scanned.with_claims(_allowed(claim, allow) for claim in scanned.claims)
        scanned = scanned.with_rule_problems(_not_installed(scanned.claims, allow))
    return scanned.with_claims(_one_owner(_one_entry(scanned.claims)))


def _allowed(claim: Claim, allow: AllowList) -> Claim:
    if claim.distribution in allow.allowed:
        return claim
    problem = problems.not_allowed(claim, allow.name, sorted(allow.allowed))
    return claim.marked(Status.SKIPPED, problem)


def _not_installed(claims: Iterable[Claim], allow: AllowList) -> list[Problem]:
    backends = {claim.name: claim.distribution for claim in claims if claim.is_backend}
    known = sorted({claim.distribution for claim in claims})
    told = []
    for name in sorted(allow.allowed.difference(known)):
        close = get_close_matches(name, known, n=1)
        # The list takes distributions; a backend's name in it is an easy slip.
        meant = close[0] if close else backends.get(name)
        told.append(problems.not_installed(name, allow.name, known, meant))
    return told


def _one_entry(claims: Iterable[Claim]) -> list[Claim]:
    """Fold a distribution's repeated entry; two objects under one name are a conflict."""
    entries: dict[tuple[object, ...], list[Claim]] = {}
    for claim in claims:
        key = claim.distribution, claim.group, claim.name
        # What is set aside already stands for itself: a shadowed release, another version.
        apart = () if claim.status is Status.OK else (claim.stated_at,)
        entries.setdefault((*key, *apart), []).append(claim)
    return [_folded(same) for same in entries.values()]


def _folded(same: list[Claim]) -> Claim:
    if len({claim.value for claim in same}) == 1:
        return same[0]
    return same[0].marked(Status.CONFLICT, problems.duplicate_entry(same))


def _one_owner(claims: list[Claim]) -> list[Claim]:
    """Refuse every claim to a backend's name that another distribution claims too."""
    rivals: dict[str, list[Claim]] = {}
    for claim in claims:
        if claim.group == BACKENDS and claim.status is Status.OK:
            rivals.setdefault(claim.name, []).append(claim)
    contested = {name: several for name, several in rivals.items() if len(several) > 1}
    return [
        claim.marked(Status.CONFLICT, problems.declared_twice(contested[claim.name]))
        if claim.status is Status.OK and claim.is_backend and claim.name in contested
        else claim
        for claim in claims
    ]
