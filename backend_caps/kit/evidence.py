"""The verdict on each claim, and the evidence file beside the implementation."""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from functools import partial
from os import PathLike
from pathlib import Path

import torch

from backend_caps.capability import evidence as documents
from backend_caps.capability.evidence import Evidence
from backend_caps.capability.facts import text_of
from backend_caps.capability.kind import UNDECLARED, Role
from backend_caps.capability.vocabulary import CAPABILITIES, AttentionType, KVLayout
from backend_caps.discovery.evidence import (
    KIT_AND_TORCH,
    Implementation,
    imports_of,
    present_of,
    versions_of,
)
from backend_caps.kit.check import Check, CheckResult, Effort, Results, Verdict
from backend_caps.kit.errors import KitError
from backend_caps.kit.scenarios import Forward, Scenario, topk_of
from backend_caps.kit.subject import Subject
from backend_caps.report.check_documents import NO_CHECK, NOT_ASKED, ClaimDocument
from backend_caps.report.document import json_of
from backend_caps.resolution.rules import cost_of_undeclared
from backend_caps.simulator import DEVICE_NAME


def _roles(subject: Subject, scenario: Scenario) -> frozenset[object]:
    """Return the roles that a forward covers: where drafts are chains, their steps are decodes."""
    is_chain = scenario.forward is Forward.DECODE and topk_of(subject) == 1
    drafts = {Role.DRAFT} if is_chain else set()
    return frozenset({scenario.forward.role, *drafts})


_SEEN: Mapping[str, Callable[[Subject, Scenario], frozenset[object]]] = {
    "dtypes": lambda _, scenario: frozenset({scenario.dtype}),
    "kv_cache_dtypes": lambda _, scenario: frozenset({scenario.dtype}),
    "roles": _roles,
    "graph_replay": lambda _, scenario: frozenset({scenario.forward.batch_kind}),
    "attention_types": lambda _subject, _scenario: frozenset({AttentionType.DECODER}),
    "kv_layouts": lambda _subject, _scenario: frozenset({KVLayout.NHD}),
}
"""The values that a case covers, of each capability that is a set of values."""


def claims_of(results: Results, known: Sequence[Check]) -> Iterator[ClaimDocument]:
    """List the stated claims, and the unstated ones that checks test as the worst value.

    Args:
        results: the results of the checks that ran.
        known: all checks, run or not.
    """
    declaration = results.subject.declaration
    stated = declaration.capabilities.stated()
    about = {claim for check in known for claim in check.claims}
    conditional = {name for when in declaration.conditions for name in when.capabilities.stated()}
    for name in CAPABILITIES:
        if name in stated or name in conditional or name in about:
            checks = [result for result in results.checks if name in result.check.claims]
            verdict = results.claims.get(name, Verdict.NOT_CHECKED)
            status, reason = verdict.value, _why_not(checks, is_known=name in about)
            if verdict is not Verdict.FAILED and not (name in stated or name in conditional):
                worst = text_of(CAPABILITIES[name].worst)
                status = UNDECLARED.value
                reason = f"counts as {worst}: {cost_of_undeclared(name)}"
            elif verdict is Verdict.HELD and (unseen := _unseen(name, stated.get(name), results)):
                status, reason = Verdict.NOT_CHECKED.value, f"no case has {', '.join(unseen)}"
            yield ClaimDocument(
                capability=name,
                value=json_of(stated.get(name, UNDECLARED)),
                conditional=name in conditional or None,
                status=status,
                checks=[result.check.code for result in checks if result.cases],
                reason=None if status in {Verdict.FAILED.value, Verdict.HELD.value} else reason,
            )


def _unseen(capability: str, value: object, results: Results) -> list[str]:
    """List the values of a set-valued claim that no case covers.

    A role is covered by any check that ran its forwards, another value by those about the claim.
    """
    if capability not in _SEEN or not isinstance(value, frozenset):
        return []
    cases = [
        case
        for result in results.checks
        for case in result.cases
        if capability in result.check.claims or capability == "roles"
    ]
    covered = partial(_SEEN[capability], results.subject)
    seen = [covered(case.scenario) for case in cases if case.scenario is not None]
    return sorted(map(text_of, value.difference(*seen)))


def _why_not(checks: Sequence[CheckResult], *, is_known: bool) -> str:
    """Return why a claim was not checked."""
    if checks:
        return "; ".join(dict.fromkeys(result.reason for result in checks))
    return NOT_ASKED if is_known else NO_CHECK


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
    """Build the evidence of a backend's results, with the versions and sources they hold for.

    The same results give the same evidence, apart from the day.

    Args:
        results: the results of all checks.
        effort: the effort of the run.
        known: all checks.
        path: the folders that plugins were discovered in, as `discover` takes them.
        day: the day of the run; today unless given.

    Raises:
        KitError: there are no files of the implementation.
    """
    subject = results.subject
    implementation = _implementation(subject, path)
    versions = versions_of(KIT_AND_TORCH, imports_of(path))
    now = present_of(subject.declaration, subject.source, implementation, versions)
    uses_triton = any(_IMPORTS_TRITON.search(text) for _, text in implementation.sources())
    return Evidence(
        schema_=documents.EVIDENCE_SCHEMA,
        backend=subject.name,
        kit_version=now.kit_version or "unknown",
        date=day or datetime.now(tz=UTC).date(),
        device=documents.EvidenceDevice(type=results.device, name=_name_of(results.device)),
        versions=documents.EvidenceVersions(
            python=f"{sys.version_info.major}.{sys.version_info.minor}",
            torch=now.torch or "unknown",
            triton=now.triton if uses_triton else None,
            distribution=now.distribution,
            version=now.version,
        ),
        effort=documents.EvidenceEffort(seeds=tuple(effort.seeds), num_steps=effort.num_steps),
        exercised=tuple(sorted(results.exercised)),
        source=now.source,
        declaration=now.declaration,
        checks=tuple(map(_check_evidence, results.checks)),
        claims=tuple(
            documents.ClaimEvidence(
                capability=each.capability,
                value=each.value,
                verdict=each.status,
                reason=each.reason,
            )
            for each in claims_of(results, known)
            if each.status != UNDECLARED.value
        ),
    )


def evidence_file(subject: Subject, *, path: _Folders | None = None) -> Path:
    """Return the file of a backend's evidence.

    Raises:
        KitError: there are no files of the implementation.
    """
    return _implementation(subject, path).evidence_file(subject.name)


def write_evidence(evidence: Evidence, file: Path) -> bool:
    """Write evidence into a file; keep a file of the same results, with its date.

    Returns:
        Whether the file changed.

    Raises:
        KitError: it cannot be written.
    """
    try:
        if _is_written(evidence, file):
            return False
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(evidence.text(), "utf-8", newline="\n")
    except OSError as error:
        raise KitError.evidence(evidence.backend, f"{file.name}: {error.strerror}") from error
    return True


def _is_written(evidence: Evidence, file: Path) -> bool:
    try:
        return Evidence.model_validate_json(file.read_bytes()).is_of_same_run(evidence)
    except (FileNotFoundError, ValueError):  # pydantic's error of another document is a ValueError
        return False


def _implementation(subject: Subject, path: _Folders | None) -> Implementation:
    pointer = subject.declaration.implementation
    found = None if pointer is None else Implementation.of(pointer, imports_of(path))
    if found is None:
        raise KitError.evidence(subject.name, f"{pointer} is in no file that can be found")
    return found


def _name_of(device: str) -> str:
    """Return the model name of a device."""
    if device == DEVICE_NAME:
        return _SIMULATED
    is_cuda = torch.device(device).type == "cuda"
    return torch.cuda.get_device_name(device) if is_cuda else platform.machine()


def _check_evidence(result: CheckResult) -> documents.CheckEvidence:
    return documents.CheckEvidence(
        code=result.check.code,
        claims=result.check.claims,
        verdict=result.status.value,
        num_cases=len(result.cases),
        num_blocked=result.num_blocked,
        seeds=tuple(sorted({case.seed for case in result.cases})),
        reason=result.reason or None,
    )
