"""The JSON of a check: each claim's status, findings, hints, and what was exercised."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Field, JsonValue

from backend_caps.report.check_catalog import CheckDescription
from backend_caps.report.document import LEFT_OUT, Document

CHECK_SCHEMA: Literal["backend-caps/check@1"] = "backend-caps/check@1"
NO_CHECK = "no check is about it"
"""Why a claim was not checked where none can."""
NOT_ASKED = "its checks were not asked for"
"""Why a claim was not checked where only some checks ran."""
StatusName: TypeAlias = Literal["held", "failed", "not checked"]
ClaimStatusName: TypeAlias = Literal["held", "failed", "not checked", "undeclared"]


class ClaimDocument(Document):
    """One claim with its status."""

    capability: str
    """The capability."""
    value: JsonValue
    """What is claimed, without conditions; `undeclared` counts as the worst."""
    conditional: Annotated[bool | None, LEFT_OUT] = None
    """True where conditions claim something else; left out where there are none."""
    status: ClaimStatusName
    """The worst outcome of the checks that ran cases; `not checked` where none did. A capability
    that is left out is `undeclared`, unless it failed as its worst value."""
    checks: list[str]
    """The checks about it that ran cases."""
    reason: Annotated[str | None, LEFT_OUT] = None
    """Why it was not checked, or what an undeclared one counts as and costs."""


class FindingDocument(Document):
    """A fault, with all that is needed to reproduce it."""

    check: str
    """The check's code."""
    claims: list[str]
    """The claims that do not hold; empty for a duty of every backend."""
    what: str
    """What was seen, and what was expected."""
    case: str
    """The case that found it, in one word."""
    scenario: str | None
    """What its batches are made of; null where it runs none."""
    schedule: str
    """The order in which the device's work ran."""
    seed: int
    """What its requests are drawn by."""
    file: str | None
    """The backend's file that is at fault; relative where it lies below the working directory."""
    line: int | None
    """The line in it, from 1."""
    replay: str
    """The command that runs this case again, alone."""


class HintDocument(Document):
    """A claim that may be too modest."""

    check: str
    """The check that saw it."""
    claim: str
    """The capability."""
    what: str
    """The claim, what was seen instead, and in how many cases; never a proof."""


class CheckedDocument(CheckDescription):
    """One check with its outcome."""

    applies: bool
    """Whether it is about anything that the backend claims."""
    status: StatusName
    """Its outcome."""
    reason: Annotated[str | None, LEFT_OUT] = None
    """Why it was not checked."""
    cases: list[str]
    """The cases that ran to an answer."""
    num_blocked: int
    """Cases without an answer: the run to compare with failed."""
    findings: list[FindingDocument]
    """The first few faults that it found."""
    hints: list[HintDocument]
    """Claims that may be too modest."""
    seconds: float
    """How long it took."""


class ExercisedDocument(Document):
    """How often a forward of the engine was among the cases."""

    forward: str
    """What its batches are for."""
    role: str
    """The role whose forward it is."""
    phase: str
    """The shape of its batches."""
    batch_kind: str
    """The kind of batch that a graph of it would be captured for."""
    num_cases: int
    """Cases that ran it; with 0, claims about it were not checked."""


class DimensionDocument(Document):
    """The values of one dimension of batches, models and memory, which cases had."""

    dimension: str
    """Its name."""
    values: dict[str, int]
    """Cases that had a value, by the value."""


class PartCostDocument(Document):
    """The cost of one part of a batch, counted on the simulated device."""

    launches: int
    """Operators and kernels, copies among them."""
    host_waits: int
    """Times that the host stood still for the device."""
    bytes_to_host: int
    """What crossed from the device to the host."""
    bytes_to_device: int
    """What crossed from the host to the device."""


class CostDocument(Document):
    """The cost of an eager batch of one forward, the second of its kind."""

    forward: str
    """What its batches are for."""
    host_seq_lens: str
    """The lengths that the host brought: `exact` ones cost the engine a copy and a wait."""
    num_requests: int
    """Requests of the batch."""
    num_context_tokens: int
    """Tokens of all contexts together."""
    prepare: PartCostDocument
    """Of `init_forward_metadata`."""
    layer: PartCostDocument
    """Of `forward` in one layer."""
    bytes_held: int
    """Device memory that the backend holds behind the preparation, beside the KV cache."""


class FileLinesDocument(Document):
    """The lines of one file of the backend, within functions."""

    file: str
    """The file; relative where it lies below the working directory."""
    num_lines: int
    """Lines that statements begin in."""
    num_run: int
    """Those that ran."""
    missing: list[str]
    """What did not run, as ranges such as `12` and `40-44`."""


class LinesDocument(Document):
    """Which lines of the backend's own files ran."""

    num_lines: int
    """Of all its files."""
    num_run: int
    """Those that ran."""
    files: list[FileLinesDocument]
    """File by file."""


class PrintedDocument(Document):
    """A line that was printed, logged or warned of while cases ran."""

    text: str
    """The line as first printed."""
    count: int
    """How often it was printed; lines that differ in numbers alone count as one."""


class EffortDocument(Document):
    """How much was tried."""

    seeds: list[int]
    """What requests were drawn by, in each scenario."""
    num_steps: int
    """Steps of checks that look for growth."""


class CheckDocument(Document):
    """The outcome of checking a backend's claims on one device."""

    schema_: Annotated[Literal["backend-caps/check@1"], Field(alias="schema")]
    backend: str
    """The name that flags use."""
    distribution: str | None
    """The distribution that ships it."""
    version: str | None
    """The distribution's version."""
    declared_at: str | None
    """`file:line` of the declaration; the file is relative where it lies below the working
    directory."""
    kit_version: str
    """The version of backend-caps that the checks belong to."""
    device: str
    """`sim`, `cpu` or `cuda`."""
    stand_ins: Annotated[list[str] | None, LEFT_OUT] = None
    """What was run in place of functions that need a GPU or its compiler; left out where none."""
    effort: EffortDocument
    """How much was tried."""
    status: StatusName
    """`failed` where anything was found; `not checked` where no case ran to an answer."""
    claims: list[ClaimDocument]
    """Every claim, also those that no check is about."""
    checks: list[CheckedDocument]
    """Every check that was asked for, in the order in which they run."""
    exercised: list[ExercisedDocument]
    """Every forward of the engine."""
    dimensions: list[DimensionDocument]
    """Every dimension that the cases have."""
    costs: Annotated[list[CostDocument] | None, LEFT_OUT] = None
    """What a batch of each forward costs; left out where some checks ran, or on a real device."""
    lines: LinesDocument | None
    """Null where lines were not counted."""
    printed: list[PrintedDocument]
    """Lines that were printed, logged or warned of while cases ran."""

    @property
    def is_stopped(self) -> bool:
        """Whether some checks apply, and none of them ran to an answer."""
        return self.status == "not checked" and any(check.applies for check in self.checks)

    @property
    def findings(self) -> list[FindingDocument]:
        """The findings of all checks."""
        return [finding for check in self.checks for finding in check.findings]

    @property
    def hints(self) -> list[HintDocument]:
        """The hints of all checks."""
        return [hint for check in self.checks for hint in check.hints]
