"""The JSON of a check: what became of each claim, what was found, and what was looked at."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Field, JsonValue

from backend_caps.report.check_catalog import CheckDescription
from backend_caps.report.document import LEFT_OUT, Document

CHECK_SCHEMA: Literal["backend-caps/check@1"] = "backend-caps/check@1"
NOT_ASKED = "its checks were not asked for"
"""Why a claim was not checked where only some checks ran."""
StatusName: TypeAlias = Literal["held", "failed", "not checked"]


class ClaimDocument(Document):
    """What became of one claim."""

    capability: str
    """The capability."""
    value: JsonValue
    """What is claimed, without conditions; `undeclared` counts as the worst."""
    conditional: Annotated[bool | None, LEFT_OUT] = None
    """True where conditions claim something else; left out where there are none."""
    status: StatusName
    """The worst of what its checks came to; one that looked at it is more than none."""
    checks: list[str]
    """The checks about it that ran cases."""
    reason: Annotated[str | None, LEFT_OUT] = None
    """Why it was not checked."""


class FindingDocument(Document):
    """A fault, with all that is needed to see it again."""

    check: str
    """The check's code."""
    claims: list[str]
    """The claims that do not hold; empty where it is what every backend owes the engine."""
    what: str
    """What was seen, and what was expected."""
    case: str
    """What found it, in one word."""
    scenario: str | None
    """What its batches are made of; null where it runs none."""
    schedule: str
    """The order in which the device's work ran."""
    seed: int
    """What its requests are drawn by."""
    file: str | None
    """The backend's own file that did it; relative where it lies below the working directory."""
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
    """What is claimed, what was seen instead, and over what; never a proof."""


class CheckedDocument(CheckDescription):
    """What became of one check."""

    applies: bool
    """Whether anything that is claimed asks for it."""
    status: StatusName
    """What became of it."""
    reason: Annotated[str | None, LEFT_OUT] = None
    """Why it was not checked."""
    cases: list[str]
    """The cases that ran to an answer."""
    num_blocked: int
    """Cases without an answer: the run to compare with failed."""
    findings: list[FindingDocument]
    """What was found; the first few."""
    hints: list[HintDocument]
    """What may be claimed beyond what is."""
    seconds: float
    """How long it took."""


class ExercisedDocument(Document):
    """How often a forward of the engine was among the cases."""

    forward: str
    """What its batches are for."""
    role: str
    """Whose forward it is."""
    phase: str
    """The shape of its batches."""
    batch_kind: str
    """The kind that a graph of it would be of."""
    num_cases: int
    """Cases that ran it; 0: what is claimed of it was not looked at."""


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


class SaidDocument(Document):
    """A line that was printed, logged or warned of while cases ran."""

    text: str
    """As it was first said."""
    count: int
    """How often; lines that differ in numbers alone count as one."""


class EffortDocument(Document):
    """How much was tried."""

    seeds: list[int]
    """What requests were drawn by, in each scenario."""
    num_steps: int
    """Steps of checks that look for growth."""


class CheckDocument(Document):
    """What became of a backend's claims on one device."""

    schema_: Annotated[Literal["backend-caps/check@1"], Field(alias="schema")]
    backend: str
    """The name that flags use."""
    distribution: str | None
    """What ships it."""
    version: str | None
    """The distribution's version."""
    declared_at: str | None
    """`file:line` of the declaration; the file is relative where it lies below the working
    directory."""
    kit_version: str
    """The version of backend-caps, which the checks are of."""
    device: str
    """`sim`, `cpu` or `cuda`."""
    effort: EffortDocument
    """How much was tried."""
    status: StatusName
    """`failed` where anything was found; `not checked` where no case ran to an answer."""
    claims: list[ClaimDocument]
    """Every claim, those too that no check is about."""
    checks: list[CheckedDocument]
    """Every check that was asked for, in the order in which they run."""
    exercised: list[ExercisedDocument]
    """Every forward of the engine."""
    lines: LinesDocument | None
    """Null where lines were not counted."""
    said: list[SaidDocument]
    """What was said meanwhile."""

    @property
    def is_stopped(self) -> bool:
        """Whether something is claimed that could be checked, and nothing was."""
        return self.status == "not checked" and any(own.applies for own in self.checks)

    @property
    def findings(self) -> list[FindingDocument]:
        """All that was found."""
        return [finding for own in self.checks for finding in own.findings]

    @property
    def hints(self) -> list[HintDocument]:
        """All claims that may be too modest."""
        return [hint for own in self.checks for hint in own.hints]
