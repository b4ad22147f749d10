"""The JSON of an explanation with what the mirror costs a step, counted."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from backend_caps.report.document import LEFT_OUT, Document
from backend_caps.report.documents import PlanDocument

Level = Literal["none", "upper_bound", "exact"]


class DraftsDocument(Document):
    """How steps speculate."""

    algorithm: Literal["EAGLE", "EAGLE3", "STANDALONE", "NGRAM"]
    """Where drafts come from, as the flags say."""
    topk: int
    """Candidates that each draft step keeps."""
    num_steps: int
    """Draft steps: the depth of a tree."""
    num_draft_tokens: int
    """Tokens that a verify takes of each request, its last one included."""


class LevelDocument(Document):
    """What a step costs at one level of `host_seq_lens`: means over the steps."""

    level: Level
    """What the host is told about lengths."""
    is_planned: bool
    """Whether it is the plan's own."""
    host_waits: float
    """Times that the host stands still for the device."""
    waits_for_lengths: float
    """Those of them that are for lengths."""
    bytes_to_host: float
    """What crosses from the device to the host."""
    bytes_of_lengths: float
    """That of it which is lengths."""
    bytes_to_device: float
    """What crosses from the host to the device."""
    event_waits: float
    """Times that a stream waits for an event of another; the host does not wait."""
    launches: float
    """Operators that are put on the device, copies among them; a graph's replay counts all of its
    own."""
    hidden_syncs: dict[str, int]
    """Operators that made the host wait in all the steps, by the line that called them."""


class LeftOutDocument(Document):
    """A level that was not measured."""

    level: Level
    """Which one."""
    reason: str
    """The backends that need more, or what stopped the run."""


class TimeDocument(Document):
    """What a GPU took for a speculative step through a relay, in a stored result."""

    file: str
    """The result's file."""
    hardware: str
    """The GPU."""
    comparison: str
    """What was compared: `mirror` and the rows of the request pool."""
    level: Level
    """What the host was told about lengths."""
    batch_size: int
    """Requests of each step."""
    step_us: float
    """A step, in microseconds: the median."""
    host_wait_us: float | None
    """How long the host stood still for lengths; null where that was not measured."""
    lengths_us: float | None
    """From the publish to the lengths on the host; null where none came there."""


class MeasuredDocument(Document):
    """Decode steps in steady state that were counted."""

    device: str
    """The torch device that they ran on; `sim` simulates one."""
    batch_size: int
    """Requests of each step."""
    num_steps: int
    """Steps at each level."""
    pool_size: int
    """Rows of the request pool, the padding row included."""
    drafts: DraftsDocument | None
    """How they speculated; null where they did not."""
    replayed: bool
    """Whether captured graphs ran the target model."""
    tokens_made: float
    """Tokens that a request got a step: the mean at the plan's level."""
    levels: list[LevelDocument]
    """What a step cost, from the least that the host can be told to the most."""
    left_out: list[LeftOutDocument]
    """Levels that were not measured."""
    times: list[TimeDocument]
    """What stored results of GPUs hold; empty where there are none."""


class MeasureDocument(Document):
    """A plan, and what its mirror costs a step."""

    schema_: Annotated[Literal["backend-caps/measure@1"], Field(alias="schema")]
    plan: PlanDocument
    """What was explained."""
    measured: MeasuredDocument | None
    """What was counted; null where the configuration cannot be run here."""
    problem: Annotated[str | None, LEFT_OUT] = None
    """Why nothing was counted; left out where something was."""
