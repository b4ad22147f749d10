"""What the mirror costs a step, counted: the JSON of it, and its sections behind an explanation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

from pydantic import Field

from backend_caps.report.document import LEFT_OUT, Document
from backend_caps.report.plans import PlanDocument
from backend_caps.report.sections import Columns, Heading, Lines, Section, table_of
from backend_caps.report.words import counted, decided_by, number_words

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
    """What the host receives about lengths."""
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
    """What the host received about lengths."""
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
    """What a step cost, from the least that the host can receive to the most."""
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


_NOTHING = "—"
"""What is shown where nothing was measured."""
_TITLE = "What a step costs, by what the host receives about lengths"


def level_words(level: str, *, is_planned: bool) -> str:
    """Name a level, and mark the plan's own."""
    return f"{level} (this plan)" if is_planned else level


def micros(time_us: float | None) -> str:
    """Write a time in whole microseconds."""
    return _NOTHING if time_us is None else f"{time_us:.0f}"


_LEVELS: Columns[LevelDocument] = {
    "host_seq_lens": lambda own: level_words(own.level, is_planned=own.is_planned),
    "host waits": lambda own: number_words(own.host_waits),
    "for lengths": lambda own: number_words(own.waits_for_lengths),
    "bytes to host": lambda own: number_words(own.bytes_to_host),
    "of lengths": lambda own: number_words(own.bytes_of_lengths),
    "event waits": lambda own: number_words(own.event_waits),
    "launches": lambda own: number_words(own.launches),
}
_TIMES: Columns[TimeDocument] = {
    "GPU": lambda own: own.hardware,
    "relay": lambda own: own.comparison,
    "host_seq_lens": lambda own: own.level,
    "requests": lambda own: str(own.batch_size),
    "step µs": lambda own: micros(own.step_us),
    "waited µs": lambda own: micros(own.host_wait_us),
    "lengths µs": lambda own: micros(own.lengths_us),
}


def costs_view(document: MeasureDocument) -> Iterator[Section]:
    """Show what a step costs, or why nothing was counted."""
    if document.problem is not None:
        yield Heading(_TITLE)
        yield Lines((document.problem,))
    if document.measured is not None:
        yield from measured_view(document.measured, document.plan)


def measured_view(measured: MeasuredDocument, plan: PlanDocument) -> Iterator[Section]:
    """Show what a step costs at each level, and what these numbers are of."""
    yield Heading(_TITLE)
    yield Lines(tuple(_what_ran(measured)))
    yield table_of(measured.levels, _LEVELS, "names")
    yield Lines(tuple(_what_it_means(measured, plan)))
    if measured.times:
        yield Heading("Times of GPUs")
        yield table_of(measured.times, _TIMES)


def _what_ran(measured: MeasuredDocument) -> Iterator[str]:
    graphs = "replayed by a graph" if measured.replayed else "run eagerly"
    yield (
        f"counted: {measured.num_steps} decode steps of {measured.batch_size} requests at each "
        f"level, in the middle of their outputs; means of a step"
    )
    if measured.drafts is not None:
        yield f"drafts: {drafts_words(measured.drafts)}"
    yield (
        "run: the plan's flags and backends, with small random models on a simulated device; "
        f"the target {graphs}; {counted(measured.tokens_made, 'token', 'tokens')} a request and "
        "step"
    )
    yield from _difference(measured.levels)


def drafts_words(drafts: DraftsDocument) -> str:
    """Say how steps speculate."""
    tokens = counted(drafts.num_draft_tokens, "token")
    shape = f"chains of {tokens}" if drafts.topk == 1 else f"trees of {tokens}"
    steps = counted(drafts.num_steps, "step")
    sizes = f"top-k {drafts.topk}, {steps}: {shape}, the last token included"
    return f"{drafts.algorithm}, {sizes}"


def _difference(levels: Sequence[LevelDocument]) -> Iterator[str]:
    """Say what the mirror adds, where a run without it is there to compare with."""
    least, most = levels[0], levels[-1]
    if least is most:
        return
    added = {
        ("host wait", "host waits"): most.host_waits - least.host_waits,
        ("byte to the host", "bytes to the host"): most.bytes_to_host - least.bytes_to_host,
        ("event wait", "event waits"): most.event_waits - least.event_waits,
        ("launch", "launches"): most.launches - least.launches,
    }
    more = ", ".join(counted(number, *names) for names, number in added.items())
    yield f"{most.level} costs a step more than {least.level}: {more}"


def _what_it_means(measured: MeasuredDocument, plan: PlanDocument) -> Iterator[str]:
    own = next(level for level in measured.levels if level.is_planned)
    yield "each step waits once for its tokens; what it waits more is for lengths, or hidden"
    for syncs, number in own.hidden_syncs.items():
        yield f"hidden: {syncs} made the host wait {number} times in {measured.num_steps} steps"
    for reason in dict.fromkeys(each.reason for each in measured.left_out):
        levels = [each.level for each in measured.left_out if each.reason == reason]
        yield f"not run with {' and '.join(levels)}: {reason}"
    yield from _of_levels(measured, plan, own)
    if any(level.bytes_of_lengths for level in measured.levels):
        yield (
            f"the lengths are the column of a request pool of {measured.pool_size} rows, 8 bytes "
            "each; a server's has a row for each request that can run, and beyond 8192 rows the "
            "batch's alone cross"
        )
    yield "not counted: steps of prompts, other ranks, and what models of a real size launch more"
    if not measured.times:
        yield (
            "no times: the simulated device has none, and no stored result of a GPU holds any "
            "(make gpu writes them)"
        )


def _of_levels(measured: MeasuredDocument, plan: PlanDocument, own: LevelDocument) -> Iterator[str]:
    if len(measured.levels) == 1 and not measured.left_out:
        yield f"other levels cost the same: {plan.server['host_seq_lens'].effect}"
    elif measured.levels[0].level != own.level:
        mirror = plan.server["host_seq_lens"]
        deciding = decided_by(mirror)
        yield f"what is above {own.level} in the table is what it would cost without {deciding}"
