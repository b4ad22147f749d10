"""Evidence: what the conformance kit found about a backend, and whether it still holds.

The kit writes it beside the backend's implementation. Where evidence is required, a claim better
than the worst value that is not verified is removed from the declaration, so that it counts as
undeclared everywhere; the cause names the reason. Nothing here reads a file or loads torch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import date
from enum import Enum
from typing import Annotated, Literal, TypeAlias

from pydantic import ConfigDict, Field, JsonValue

from backend_caps.capability.backend import Backend, Unverified
from backend_caps.capability.declaration import Declaration, When
from backend_caps.capability.facts import text_of
from backend_caps.capability.kind import UNDECLARED
from backend_caps.capability.model import FrozenModel
from backend_caps.capability.sets import Conflict, Unchecked
from backend_caps.capability.vocabulary import CAPABILITIES, Capabilities

EVIDENCE_SCHEMA: Literal["backend-caps/evidence@1"] = "backend-caps/evidence@1"
ANY_DEVICE = "sim"
"""The device that stands in for any other: what held there is not stale on another."""
UNVERIFIABLE = frozenset({"attention_arch", "auto_priority", "compute_capability", "devices"})
"""Capabilities without a check: where a backend runs, and how early `auto` chooses it."""

_Verdict: TypeAlias = Literal["held", "failed", "not checked"]


class _Part(FrozenModel):
    model_config = ConfigDict(validate_by_name=True, serialize_by_alias=True)


class EvidenceDevice(_Part):
    """Where a backend ran."""

    type: str
    """`sim`, `cpu` or `cuda`."""
    name: str
    """The name of the device."""


class EvidenceVersions(_Part):
    """The versions under which a backend ran."""

    python: str
    """The major and minor version. A newer one leaves evidence fresh: torch does the computing."""
    torch: str
    """Torch's version, without the name of its build."""
    triton: str | None
    """Triton's version; null where the implementation does not import it."""
    distribution: str | None
    """The distribution that ships the backend; null for none."""
    version: str | None
    """The distribution's version."""


class EvidenceEffort(_Part):
    """How much was tried."""

    seeds: tuple[int, ...]
    """The seeds of the random requests, in each scenario."""
    num_steps: int
    """Steps of a check that looks for growth."""


class CheckEvidence(_Part):
    """The outcome of a check."""

    code: str
    """The check's name."""
    claims: tuple[str, ...]
    """The capabilities that it checks; empty for a check that every backend must pass."""
    verdict: _Verdict
    """Whether it held."""
    num_cases: int
    """The cases that ran to an answer."""
    num_blocked: int
    """The cases without one: the run to compare with failed."""
    seeds: tuple[int, ...]
    """The seeds of those that ran."""
    reason: str | None
    """Why it was not checked; null where it was."""


class ClaimEvidence(_Part):
    """The outcome for a claim."""

    capability: str
    """The capability."""
    value: JsonValue
    """The claimed value, without conditions; `undeclared` counts as the worst."""
    verdict: _Verdict
    """The worst of what its checks came to; one that looked at it is more than none."""
    reason: str | None
    """Why it was not checked; null where it was."""


class Evidence(_Part):
    """What the conformance kit found about a backend. Equal runs differ in the date alone."""

    schema_: Annotated[Literal["backend-caps/evidence@1"], Field(alias="schema")]
    backend: str
    """The name that flags use."""
    kit_version: str
    """The version of backend-caps, whose kit it is."""
    date: date
    """The day of the run."""
    device: EvidenceDevice
    """Where the backend ran."""
    versions: EvidenceVersions
    """The versions under which it ran."""
    effort: EvidenceEffort
    """How much was tried."""
    exercised: tuple[str, ...]
    """`role/phase` of each forward that ran, sorted."""
    source: str
    """A digest of the implementation's files."""
    declaration: str
    """A digest of the declaration, tolerances and conditions included."""
    checks: tuple[CheckEvidence, ...]
    """The outcome of each check, in the order in which they ran."""
    claims: tuple[ClaimEvidence, ...]
    """The outcome for each claim, in the table's order."""

    def text(self) -> str:
        """Return the text of the evidence file; equal evidence gives equal bytes."""
        return self.model_dump_json(indent=2) + "\n"

    def is_of_same_run(self, other: Evidence) -> bool:
        """Return whether the two differ in the date at most."""
        return self.model_copy(update={"date": other.date}) == other


@dataclass(frozen=True, slots=True, kw_only=True)
class Present:
    """The versions and digests now, to compare evidence with. None: not known."""

    kit_version: str | None
    torch: str | None
    triton: str | None
    distribution: str | None
    version: str | None
    source: str
    declaration: str
    device: str | None = None
    """The type of the server's device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A difference between the kit's run and now."""

    what: str
    was: str | None
    now: str | None

    def __str__(self) -> str:
        if self.what in {"source", "declaration"}:
            return f"the {self.what} changed"
        return f"{self.what} was {self.was or 'none'} and is {self.now or 'not known'}"


class ClaimState(Enum):
    """How far evidence supports a claim."""

    VERIFIED = "verified"
    """Its checks held, and nothing has changed since."""
    DECLARED = "declared"
    """There is no evidence."""
    STALE = "stale"
    """It was checked, and something has changed since."""
    FAILED = "failed"
    """A check of it failed."""
    NOT_CHECKED = "not checked"
    """The kit ran, and no check covered it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How a backend's claims stand: its evidence, and what has changed since."""

    evidence: Evidence | None = None
    """None where there is no file, or it cannot be read."""
    changes: tuple[Change, ...] = ()
    """The differences since the kit's run; empty: the evidence is fresh."""
    problem: str | None = None
    """Why an existing file cannot be used."""

    @property
    def failed_checks(self) -> tuple[CheckEvidence, ...]:
        """List the checks that failed."""
        checks = () if self.evidence is None else self.evidence.checks
        return tuple(check for check in checks if check.verdict == "failed")

    def state(self, capability: str) -> tuple[ClaimState, str | None]:
        """Return a claim's state, and why it is not verified; None where it is.

        A failed check that every backend must pass fails every claim.
        """
        claims = () if self.evidence is None else self.evidence.claims
        claim = next((each for each in claims if each.capability == capability), None)
        if claim is None:
            problem = "" if self.problem is None else f": {self.problem}"
            return ClaimState.DECLARED, f"no evidence{problem}"
        if claim.verdict == "not checked":
            return ClaimState.NOT_CHECKED, f"not checked: {claim.reason}"
        if self.changes:
            return ClaimState.STALE, f"stale: {', '.join(map(str, self.changes))}"
        # A check without claims is about what every backend owes.
        counted = [c.code for c in self.failed_checks if not c.claims or capability in c.claims]
        if counted:
            return ClaimState.FAILED, f"failed: {', '.join(counted)}"
        return ClaimState.VERIFIED, None


def changes_since(evidence: Evidence, present: Present) -> tuple[Change, ...]:
    """List the differences between the kit's run and now."""
    versions = evidence.versions
    shipped_then, shipped_now = (
        " ".join(part for part in (each.distribution, each.version) if part) or None
        for each in (versions, present)
    )
    # Evidence of the simulated device holds for any device.
    device = present.device if evidence.device.type != ANY_DEVICE else None
    values = {
        "backend-caps": (evidence.kit_version, present.kit_version),
        "torch": (versions.torch, present.torch),
        "triton": (versions.triton, versions.triton and present.triton),
        "the distribution": (shipped_then, shipped_now),
        "source": (evidence.source, present.source),
        "declaration": (evidence.declaration, present.declaration),
        "the device": (device and evidence.device.type, device),
    }
    changed = {what: (was, now) for what, (was, now) in values.items() if was != now}
    return tuple(Change(what=what, was=was, now=now) for what, (was, now) in changed.items())


def declaration_digest(declaration: Declaration) -> str:
    """Hash a declaration's claims; defaults and adapters do not change the digest."""
    text = declaration.model_dump_json(exclude_defaults=True, exclude={"adapters"})
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def believed(backend: Backend, standing: Standing) -> Backend:
    """Remove the unverified claims from a backend's declaration.

    A verified claim loses what conditions on machine or server improve, because the kit checks
    only what holds on all of them. A composite is returned as it is: it claims nothing for its
    parts.
    """
    declaration = backend.declaration
    if declaration is None or declaration.parts:
        return backend
    unverified = dict(_unverified(declaration, standing))
    return replace(backend, declaration=_without(declaration, unverified), unverified=unverified)


def _unverified(declaration: Declaration, standing: Standing) -> Iterator[tuple[str, Unverified]]:
    """Yield each claim better than the worst value that is not verified."""
    stated = declaration.capabilities.stated()
    whens = [when.capabilities.stated() for when in declaration.conditions]
    for name, kind in CAPABILITIES.items():
        values = [claims[name] for claims in (stated, *whens) if name in claims]
        why = standing.state(name)[1] or _why_not_checked(declaration, name)
        if name in UNVERIFIABLE or why is None or all(value == kind.worst for value in values):
            continue
        claimed = f"={text_of(stated[name])}" if name in stated else ", under a condition"
        words = f"declares {name}{claimed}, not verified ({why}): counts as undeclared"
        yield name, Unverified(value=stated.get(name, UNDECLARED), words=words)


def _why_not_checked(declaration: Declaration, name: str) -> str | None:
    """Return why no check covers a claim; None where one covers what `_without` keeps."""
    base = declaration.capabilities.stated()
    stating = [when for when in declaration.conditions if name in when.capabilities.stated()]
    is_checked = name in base or any(_is_by_use(when) for when in stating)
    bounded = (_bounded(name, when, base) for when in stating)
    if is_checked and not any(isinstance(each, Unchecked | Conflict) for each in bounded):
        return None
    return "no check looks at conditions on machine or server"


def _bounded(name: str, when: When, base: Mapping[str, object]) -> object:
    """Return a condition's value, limited to the base's where the kit cannot check it."""
    value, kind = when.capabilities.stated()[name], CAPABILITIES[name]
    if _is_by_use(when) or name in UNVERIFIABLE:
        return value
    return kind.join(value, base.get(name, kind.worst))


def _is_by_use(when: When) -> bool:
    """Return whether a condition names only role and phase; the kit checks each."""
    return when.given.stated().keys() <= {"role", "phase"}


def _without(declaration: Declaration, unverified: Collection[str]) -> Declaration:
    base = declaration.capabilities.stated()
    kept = {name: value for name, value in base.items() if name not in unverified}
    conditions = []
    for when in declaration.conditions:
        names = [name for name in when.capabilities.stated() if name not in unverified]
        if names:
            bounded = {name: _bounded(name, when, base) for name in names}
            capabilities = Capabilities.model_validate(bounded)
            conditions.append(when.model_copy(update={"capabilities": capabilities}))
    capabilities = Capabilities.model_validate(kept)
    return declaration.model_copy(update={"capabilities": capabilities, "conditions": conditions})
