"""How a report shows which claims are verified: a mark behind the value, and a line each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from backend_caps.capability.evidence import Change
from backend_caps.report.documents import BackendDocument, CapabilityDocument
from backend_caps.report.evidence_documents import EvidenceDocument
from backend_caps.report.sections import Heading, Lines, Section, Table

EVIDENCE_COLUMNS = ("backend", "checked", "what speaks against it")
"""What `evidence_rows` tells."""
_MARKS: Mapping[str, str] = {"verified": " ✓", "stale": " ~", "failed": " ✗"}
_NONE = "it has no evidence"
_LEGEND = {
    "verified": "✓ held when the conformance kit looked, and nothing has changed since.",
    "stale": "~ the kit looked, and something has changed since.",
    "failed": "✗ did not hold when the kit looked.",
}


def mark_of(said: CapabilityDocument) -> str:
    """Mark a claim by what is known of it; nothing where nobody looked."""
    return _MARKS.get(said.evidence or "", "")


def evidence_view(backends: Sequence[BackendDocument]) -> Iterator[Section]:
    """Say what the marks mean, and of each plugin's backend where its evidence comes from."""
    told = tuple(evidence_rows(backends))
    if not told:
        return
    states = {said.evidence for backend in backends for said in backend.capabilities.values()}
    legend = [text for state, text in _LEGEND.items() if state in states]
    yield Heading("Evidence")
    if legend:
        yield Lines((*legend, "Without a mark, no check has looked."))
    yield Table(EVIDENCE_COLUMNS, told)


def evidence_rows(backends: Sequence[BackendDocument]) -> Iterator[tuple[str, str, str]]:
    """Say of each plugin's backend where its evidence comes from, and what speaks against it.

    Where others have evidence, one without is said to have none; where nobody has, there is no row.
    """
    if not any(backend.evidence for backend in backends):
        return
    for backend in backends:
        if backend.evidence is not None:
            yield backend.name, _run(backend.evidence), _against(backend.evidence)
        elif backend.status == "ok" and _is_plugins(backend):
            yield backend.name, "never", _NONE


def _is_plugins(backend: BackendDocument) -> bool:
    """Tell a plugin's backend from an engine's class or name and from a composite."""
    return backend.class_ is None and backend.classes is None and backend.parts is None


def _run(evidence: EvidenceDocument) -> str:
    if evidence.date is None:
        return "not known"
    return (
        f"{evidence.date} on {evidence.device}, {evidence.num_seeds} seeds, by backend-caps "
        f"{evidence.kit_version}, torch {evidence.torch}"
    )


def _against(evidence: EvidenceDocument) -> str:
    told = [
        evidence.problem or "",
        f"failed: {', '.join(evidence.failed)}" if evidence.failed else "",
        *(str(Change(what=each.what, was=each.was, now=each.now)) for each in evidence.changes),
    ]
    return "; ".join(text for text in told if text) or "nothing"
