"""Writing evidence: what the checks found, in a file beside the implementation. Loads torch."""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Sequence
from datetime import UTC, date, datetime
from os import PathLike
from pathlib import Path

import torch

from backend_caps.capability.evidence import (
    EVIDENCE_SCHEMA,
    CheckEvidence,
    ClaimEvidence,
    Evidence,
    EvidenceDevice,
    EvidenceEffort,
    EvidenceVersions,
)
from backend_caps.discovery.evidence import (
    KIT_AND_TORCH,
    Implementation,
    imports_of,
    present_of,
    versions_of,
)
from backend_caps.kit.check import Check, Effort
from backend_caps.kit.claims import Claimed, claims_of
from backend_caps.kit.errors import EvidenceError
from backend_caps.kit.results import CheckResult, Results
from backend_caps.kit.subject import Subject
from backend_caps.simulator import DEVICE_NAME

_Folders = Sequence[str | PathLike[str]]
_IMPORTS_TRITON = re.compile(rb"^\s*(?:import|from)\s+triton\b", re.MULTILINE)
_SIMULATED = "simulated accelerator"


def evidence_of(
    results: Results,
    effort: Effort,
    known: Sequence[Check],
    *,
    path: _Folders | None = None,
    day: date | None = None,
) -> Evidence:
    """Write down what checks found of a backend, and under what: the same run, the same evidence.

    Args:
        results: of all checks.
        effort: how much was tried.
        known: all checks.
        path: the folders that plugins were looked for in, as `discover` takes them.
        day: the day of the run; today unless given.

    Raises:
        EvidenceError: there are no files of the implementation.
    """
    subject = results.subject
    implementation = _implementation(subject, path)
    versions = versions_of(KIT_AND_TORCH, imports_of(path))
    now = present_of(subject.declaration, subject.source, implementation, versions)
    return Evidence(
        schema_=EVIDENCE_SCHEMA,
        backend=subject.name,
        kit_version=now.kit_version or "unknown",
        date=day or datetime.now(tz=UTC).date(),
        device=EvidenceDevice(type=results.device, name=_name_of(results.device)),
        versions=EvidenceVersions(
            python=f"{sys.version_info.major}.{sys.version_info.minor}",
            torch=now.torch or "unknown",
            triton=now.triton if _uses_triton(implementation) else None,
            distribution=now.distribution,
            version=now.version,
        ),
        effort=EvidenceEffort(seeds=tuple(effort.seeds), num_steps=effort.num_steps),
        exercised=tuple(sorted(results.exercised)),
        source=now.source,
        declaration=now.declaration,
        checks=tuple(_check(own) for own in results.checks),
        claims=tuple(_claim(each) for each in claims_of(results, known)),
    )


def evidence_file(subject: Subject, *, path: _Folders | None = None) -> Path:
    """Say where a backend's evidence lies.

    Raises:
        EvidenceError: there are no files of the implementation.
    """
    return _implementation(subject, path).evidence_file(subject.name)


def write_evidence(evidence: Evidence, file: Path) -> bool:
    """Write evidence into a file; one of a run that found the same stays, with its date.

    Returns:
        Whether the file changed.

    Raises:
        EvidenceError: it cannot be written.
    """
    try:
        if _is_there(evidence, file):
            return False
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(evidence.text(), "utf-8", newline="\n")
    except OSError as error:
        problem = f"{file.name}: {error.strerror}"
        raise EvidenceError(backend=evidence.backend, problem=problem) from error
    return True


def _is_there(evidence: Evidence, file: Path) -> bool:
    try:
        return Evidence.model_validate_json(file.read_bytes()).is_of_same_run(evidence)
    except (FileNotFoundError, ValueError):  # what is no evidence is written over
        return False


def _implementation(subject: Subject, path: _Folders | None) -> Implementation:
    pointer = subject.declaration.implementation
    found = None if pointer is None else Implementation.of(pointer, imports_of(path))
    if found is None:
        raise EvidenceError(
            backend=subject.name, problem=f"{pointer} is in no file that can be found"
        )
    return found


def _name_of(device: str) -> str:
    """Say what a device calls itself."""
    if device == DEVICE_NAME:
        return _SIMULATED
    is_cuda = torch.device(device).type == "cuda"
    return torch.cuda.get_device_name(device) if is_cuda else platform.machine()


def _uses_triton(implementation: Implementation) -> bool:
    return any(_IMPORTS_TRITON.search(text) for _, text in implementation.sources())


def _check(own: CheckResult) -> CheckEvidence:
    return CheckEvidence(
        code=own.check.code,
        claims=own.check.claims,
        verdict=own.status.value,
        num_cases=len(own.cases),
        num_blocked=own.num_blocked,
        seeds=tuple(sorted({case.seed for case in own.cases})),
        reason=own.reason or None,
    )


def _claim(each: Claimed) -> ClaimEvidence:
    return ClaimEvidence(
        capability=each.capability,
        value=each.value,
        verdict=each.verdict.value,
        reason=each.reason,
    )
