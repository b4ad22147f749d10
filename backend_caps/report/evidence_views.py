"""How a report shows which claims are verified: a mark behind the value, and a line each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from backend_caps.capability.evidence import Change
from backend_caps.report.documents import BackendDocument, CapabilityDocument
from backend_caps.report.evidence_documents import EvidenceDocument
from backend_caps.report.sections import Lines

_MARKS: Mapping[str, str] = {"verified": " ✓", "stale": " ~", "failed": " ✗"}
_LEGEND = {
    "verified": "✓ held when the conformance kit looked, and nothing has changed since",
    "stale": "~ the kit looked, and something has changed since",
    "failed": "✗ did not hold when the kit looked",
}


def mark_of(said: CapabilityDocument) -> str:
    """Mark a claim by what is known of it; nothing where nobody looked."""
    return _MARKS.get(said.evidence or "", "")


def evidence_view(backends: Sequence[BackendDocument]) -> Iterator[Lines]:
    """Say what the marks mean, and of each backend with evidence where it comes from."""
    states = {said.evidence for backend in backends for said in backend.capabilities.values()}
    legend = [text for state, text in _LEGEND.items() if state in states]
    told = [f"{b.name}: {_told(b.evidence)}" for b in backends if b.evidence is not None]
    if told:
        yield Lines((*legend, *told))


def _told(evidence: EvidenceDocument) -> str:
    if evidence.problem is not None:
        return f"no evidence: {evidence.problem}"
    ran = (
        f"checked on {evidence.device} with {evidence.num_seeds} seeds on {evidence.date}, by "
        f"backend-caps {evidence.kit_version} and torch {evidence.torch}"
    )
    changes = ", ".join(str(Change(what=c.what, was=c.was, now=c.now)) for c in evidence.changes)
    told = (
        ran,
        f"failed: {', '.join(evidence.failed)}" if evidence.failed else "",
        f"since then {changes}" if changes else "",
    )
    return "; ".join(text for text in told if text)
