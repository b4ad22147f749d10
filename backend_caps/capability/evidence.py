"""Evidence: what the conformance kit found of a backend, and whether that still holds.

The kit writes it beside the backend's implementation. Where evidence is required, a claim better
than the worst value that is not verified is taken out of the declaration, so that it counts as
undeclared everywhere, and the cause says why. Nothing here reads a file or loads torch.
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
"""Capabilities that no check is about: they say where a backend runs, and which is preferred."""

_Verdict: TypeAlias = Literal["held", "failed", "not checked"]


class _Part(FrozenModel):
    model_config = ConfigDict(validate_by_name=True, serialize_by_alias=True)


class EvidenceDevice(_Part):
    """Where a backend ran."""

    type: str
    """`sim`, `cpu` or `cuda`."""
    name: str
    """What the device calls itself."""


class EvidenceVersions(_Part):
    """What it ran under."""

    python: str
    """The major and minor version. A newer one makes no evidence stale: torch computes."""
    torch: str
    """Torch's version, without the name of its build."""
    triton: str | None
    """Triton's version; null where the implementation does not import it."""
    distribution: str | None
    """What ships the backend; null where nothing does."""
    version: str | None
    """The distribution's version."""


class EvidenceEffort(_Part):
    """How much was tried."""

    seeds: tuple[int, ...]
    """What requests were drawn by, in each scenario."""
    num_steps: int
    """Steps of a check that looks for growth."""


class CheckEvidence(_Part):
    """What became of a check."""

    code: str
    """The check's name."""
    claims: tuple[str, ...]
    """The capabilities that it is about; empty: what every backend owes the engine."""
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
    """What became of a claim."""

    capability: str
    """The capability."""
    value: JsonValue
    """What was claimed, without conditions; `undeclared` counts as the worst."""
    verdict: _Verdict
    """The worst of what its checks came to; one that looked at it is more than none."""
    reason: str | None
    """Why it was not checked; null where it was."""


class Evidence(_Part):
    """What the conformance kit found of a backend: nothing in it but the date is of one run."""

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
    """What it ran under."""
    effort: EvidenceEffort
    """How much was tried."""
    exercised: tuple[str, ...]
    """`role/phase` of each forward that ran, sorted."""
    source: str
    """A digest of the implementation's files."""
    declaration: str
    """A digest of what the backend declares, tolerances and conditions included."""
    checks: tuple[CheckEvidence, ...]
    """What became of each check, in the order in which they ran."""
    claims: tuple[ClaimEvidence, ...]
    """What became of each claim, in the table's order."""

    def text(self) -> str:
        """Write it as its file holds it: the same evidence gives the same bytes."""
        return self.model_dump_json(indent=2) + "\n"

    def is_of_same_run(self, other: Evidence) -> bool:
        """Tell whether nothing but the date differs."""
        return self.model_copy(update={"date": other.date}) == other


@dataclass(frozen=True, slots=True, kw_only=True)
class Present:
    """What evidence is compared with: what is here now. None is not known."""

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
    """Something that is not what it was when the kit looked."""

    what: str
    was: str | None
    now: str | None

    def __str__(self) -> str:
        if self.what in {"source", "declaration"}:
            return f"the {self.what} changed"
        return f"{self.what} was {self.was or 'none'} and is {self.now or 'not known'}"


class ClaimState(Enum):
    """What is known of a claim beyond its being made."""

    VERIFIED = "verified"
    """It held when the kit looked, and nothing has changed since."""
    DECLARED = "declared"
    """There is no evidence."""
    STALE = "stale"
    """The kit looked, and something has changed since."""
    FAILED = "failed"
    """It did not hold when the kit looked."""
    NOT_CHECKED = "not checked"
    """The kit ran, and no check looked at it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How a backend's claims stand: its evidence, and what has changed since."""

    evidence: Evidence | None = None
    """None where there is none, or none that can be read."""
    changes: tuple[Change, ...] = ()
    """What is not what it was; nothing: the evidence is fresh."""
    problem: str | None = None
    """Why a file that is there is no evidence."""

    @property
    def failed_checks(self) -> tuple[CheckEvidence, ...]:
        """List the checks that failed."""
        checks = () if self.evidence is None else self.evidence.checks
        return tuple(check for check in checks if check.verdict == "failed")

    def state(self, capability: str) -> tuple[ClaimState, str | None]:
        """Return how one claim stands, and why it is not verified, or None where it is.

        Where what every backend owes failed, none is verified.
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
    """List what is not what it was when the kit looked."""
    was = evidence.versions
    shipped, ships = (
        " ".join(part for part in (of.distribution, of.version) if part) or None
        for of in (was, present)
    )
    device = present.device if evidence.device.type != ANY_DEVICE else None
    pairs = {
        "backend-caps": (evidence.kit_version, present.kit_version),
        "torch": (was.torch, present.torch),
        "triton": (was.triton, was.triton and present.triton),
        "the distribution": (shipped, ships),
        "source": (evidence.source, present.source),
        "declaration": (evidence.declaration, present.declaration),
        "the device": (device and evidence.device.type, device),
    }
    return tuple(
        Change(what=what, was=before, now=now)
        for what, (before, now) in pairs.items()
        if before != now
    )


def declaration_digest(declaration: Declaration) -> str:
    """Sum up what a backend claims; what it leaves out counts for nothing, nor do its adapters."""
    text = declaration.model_dump_json(exclude_defaults=True, exclude={"adapters"})
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def believed(backend: Backend, standing: Standing) -> Backend:
    """Take out of a backend's declaration what is claimed and not verified.

    Of a verified claim, what a condition on machine or server betters is taken out too: the kit
    looks at what holds whatever they are. A composite claims nothing for its parts, and stays as
    it is.
    """
    declaration = backend.declaration
    if declaration is None or declaration.parts:
        return backend
    unverified = dict(_unverified(declaration, standing))
    return replace(backend, declaration=_without(declaration, unverified), unverified=unverified)


def _unverified(declaration: Declaration, standing: Standing) -> Iterator[tuple[str, Unverified]]:
    """List the optimistic claims that are not verified, each with why, in whole words."""
    stated = declaration.capabilities.stated()
    whens = [when.capabilities.stated() for when in declaration.conditions]
    for name, kind in CAPABILITIES.items():
        values = [own[name] for own in (stated, *whens) if name in own]
        why = standing.state(name)[1] or _why_not_looked_at(declaration, name)
        if name in UNVERIFIABLE or why is None or all(value == kind.worst for value in values):
            continue
        says = f"={text_of(stated[name])}" if name in stated else ", under a condition"
        words = f"declares {name}{says}, not verified ({why}): counts as undeclared"
        yield name, Unverified(value=stated.get(name, UNDECLARED), words=words)


def _why_not_looked_at(declaration: Declaration, name: str) -> str | None:
    """Say that no check decides the conditions of a claim; None where what is left is checked."""
    base = declaration.capabilities.stated()
    stating = [when for when in declaration.conditions if name in when.capabilities.stated()]
    is_looked_at = name in base or any(_is_by_use(when) for when in stating)
    bounded = (_bounded(name, when, base) for when in stating)
    if is_looked_at and not any(isinstance(each, Unchecked | Conflict) for each in bounded):
        return None
    return "no check looks at conditions on machine or server"


def _bounded(name: str, when: When, base: Mapping[str, object]) -> object:
    """Return what a condition claims; where the kit does not decide it, no more than the base."""
    value, kind = when.capabilities.stated()[name], CAPABILITIES[name]
    if _is_by_use(when) or name in UNVERIFIABLE:
        return value
    return kind.join(value, base.get(name, kind.worst))


def _is_by_use(when: When) -> bool:
    """Tell whether the kit decides a condition itself: it checks each role and phase."""
    return when.given.stated().keys() <= {"role", "phase"}


def _without(declaration: Declaration, unverified: Collection[str]) -> Declaration:
    base = declaration.capabilities.stated()
    kept = {name: value for name, value in base.items() if name not in unverified}
    conditions = []
    for when in declaration.conditions:
        names = [name for name in when.capabilities.stated() if name not in unverified]
        if names:
            left = Capabilities.model_validate({name: _bounded(name, when, base) for name in names})
            conditions.append(when.model_copy(update={"capabilities": left}))
    capabilities = Capabilities.model_validate(kept)
    return declaration.model_copy(update={"capabilities": capabilities, "conditions": conditions})
