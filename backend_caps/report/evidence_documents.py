"""The JSON of evidence in a report: whether there is some, and what made it stale."""

from __future__ import annotations

from typing import Annotated, Literal

from backend_caps.capability.evidence import ClaimState, Standing
from backend_caps.report.document import LEFT_OUT, Document

Known = Literal["verified", "stale", "failed", "not checked"]


class ChangeDocument(Document):
    """Something that is not what it was when the kit looked."""

    what: str
    """`backend-caps`, `torch`, `triton`, `the distribution`, `source`, `declaration` or `the
    device`."""
    was: str | None
    """What it was: a version, a digest or a device."""
    now: str | None
    """What it is; null where that is not known."""


class EvidenceDocument(Document):
    """What the conformance kit left beside an implementation."""

    date: Annotated[str | None, LEFT_OUT] = None
    """The day of the run; left out, as what follows, where the file is no evidence."""
    kit_version: Annotated[str | None, LEFT_OUT] = None
    """The version of backend-caps that it ran with."""
    torch: Annotated[str | None, LEFT_OUT] = None
    """The version of torch that it ran with."""
    device: Annotated[str | None, LEFT_OUT] = None
    """The type of the device that it ran on."""
    num_seeds: Annotated[int | None, LEFT_OUT] = None
    """How often each scenario was drawn."""
    failed: Annotated[list[str] | None, LEFT_OUT] = None
    """The checks that failed; left out where none did."""
    changes: list[ChangeDocument]
    """What has changed since; nothing: the evidence is fresh."""
    problem: Annotated[str | None, LEFT_OUT] = None
    """Why a file that is there is no evidence."""


def evidence_document(standing: Standing) -> EvidenceDocument:
    """Write how a backend's claims stand."""
    evidence = standing.evidence
    if evidence is None:
        return EvidenceDocument(changes=[], problem=standing.problem)
    return EvidenceDocument(
        date=evidence.date.isoformat(),
        kit_version=evidence.kit_version,
        torch=evidence.versions.torch,
        device=evidence.device.type,
        num_seeds=len(evidence.effort.seeds),
        failed=[*standing.failed] or None,
        changes=[
            ChangeDocument(what=each.what, was=each.was, now=each.now) for each in standing.changes
        ],
    )


def known_of(standing: Standing | None, capability: str) -> Known | None:
    """Say what is known of a claim beyond its being made; None: nobody looked."""
    state = ClaimState.DECLARED if standing is None else standing.state(capability)
    return None if state is ClaimState.DECLARED else state.value
