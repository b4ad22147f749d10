"""Evidence in few words."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date

from backend_caps.capability.evidence import (
    EVIDENCE_SCHEMA,
    CheckEvidence,
    ClaimEvidence,
    Evidence,
    EvidenceDevice,
    EvidenceEffort,
    EvidenceVersions,
    Present,
    Standing,
)

HELD, FAILED, NOT_CHECKED = "held", "failed", "not checked"
PRESENT = Present(
    kit_version="1.0",
    torch="2.13.0",
    triton="3.7.1",
    distribution="fa3-caps",
    version="1.0",
    source="sha256:5",
    declaration="sha256:d",
)
"""What is here, where nothing has changed."""


def evidence(
    verdicts: Mapping[str, str], *, device: str = "sim", owed: str = HELD, triton: str | None = None
) -> Evidence:
    """Write down what became of claims, each by a check of its own, and of one that is owed."""
    reasons = {name: "no case" if each == NOT_CHECKED else None for name, each in verdicts.items()}
    checks = {**{name: (name,) for name in verdicts}, "races": ()}
    return Evidence(
        schema_=EVIDENCE_SCHEMA,
        backend="fa3",
        kit_version="1.0",
        date=date(2026, 11, 22),
        device=EvidenceDevice(type=device, name="a device"),
        versions=EvidenceVersions(
            python="3.11", torch="2.13.0", triton=triton, distribution="fa3-caps", version="1.0"
        ),
        effort=EvidenceEffort(seeds=(0, 1), num_steps=100),
        exercised=("target/decode",),
        source="sha256:5",
        declaration="sha256:d",
        checks=tuple(
            CheckEvidence.model_validate(
                {
                    "code": f"check-{name}".replace("_", "-"),
                    "claims": claims,
                    "verdict": verdicts.get(name, owed),
                    "num_cases": 3,
                    "num_blocked": 0,
                    "seeds": (0, 1),
                    "reason": reasons.get(name),
                }
            )
            for name, claims in checks.items()
        ),
        claims=tuple(
            ClaimEvidence.model_validate(
                {"capability": name, "value": "none", "verdict": each, "reason": reasons[name]}
            )
            for name, each in verdicts.items()
        ),
    )


def verified(*names: str) -> Standing:
    """Say of some claims that they held, and that nothing has changed since."""
    return Standing(evidence=evidence(dict.fromkeys(names, HELD)))
