"""The JSON of a trace: Chrome's Trace Event Format, which Perfetto opens as it is.

Times are microseconds. Each level is a process, each lane a thread of it; what lies within another
slice of its thread is a child of it. https://perfetto.dev/docs/getting-started/other-formats
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from backend_caps.report.document import LEFT_OUT, Document
from backend_caps.report.dry_run_documents import WorsenedDocument
from backend_caps.report.step_costs import DraftsDocument, LeftOutDocument, Level

SpanCategory = Literal["host", "host wait", "device", "operator", "idle"]
SignalName = Literal[
    "lengths",
    "lengths to the host",
    "gather",
    "WAR barrier",
    "batch",
    "tokens",
    "tokens to the host",
    "other",
]


class SliceDetails(Document):
    """What is known of a slice, beside its name and its times."""

    step: Annotated[int | None, LEFT_OUT] = None
    """The step that it is of: 1 is the first that is shown, and those before it are 0 and less;
    left out of idle slices."""
    waits_for: Annotated[str | None, LEFT_OUT] = None
    """The lane that the host waits for, or that let an idle lane go on; left out where nobody
    waits, and where the host waits for the whole device."""
    busy_us: Annotated[float | None, LEFT_OUT] = None
    """How long operators of a block ran; left out of all else."""
    launched_us: Annotated[float | None, LEFT_OUT] = None
    """When the host had launched an operator; left out of all else, and where nobody knows."""
    replayed: Annotated[bool | None, LEFT_OUT] = None
    """Whether a graph's replay launched an operator; left out of all else."""
    num_bytes: Annotated[int | None, LEFT_OUT] = None
    """Bytes between host and device; left out where none cross."""
    site: Annotated[str | None, LEFT_OUT] = None
    """The line that launched an operator, or that was captured; left out of all else."""


class SliceDocument(Document):
    """A stretch of a lane."""

    ph: Literal["X"] = "X"
    """A complete event."""
    name: str
    """The region of the runtime, the operator, or who is waited for."""
    cat: SpanCategory
    """What it is: the host's code or its wait; a block of a stream, an operator of it, or nothing
    that runs."""
    ts: float
    """When it begins."""
    dur: float
    """How long it is."""
    pid: int
    """The level's process."""
    tid: int
    """The lane's thread."""
    args: SliceDetails
    """What else is known."""


class FlowDocument(Document):
    """One end of an arrow, in the slice that runs then."""

    ph: Literal["s", "f"]
    """Whether it begins or ends here."""
    id: int
    """The arrow's number; both ends have it."""
    name: SignalName
    """What it says."""
    cat: Literal["flow"] = "flow"
    """All of them are shown as flows."""
    ts: float
    """When."""
    pid: int
    """The level's process."""
    tid: int
    """The lane's thread."""
    bp: Annotated[Literal["e"] | None, LEFT_OUT] = None
    """`e`: it is bound to the slice that encloses it; left out, to the next one: what the host
    goes on with."""


class NameDocument(Document):
    """Names a level's process or a lane's thread, or puts it in its place."""

    ph: Literal["M"] = "M"
    """A metadata event."""
    name: Literal["process_name", "process_sort_index", "thread_name", "thread_sort_index"]
    """What is named, or put in its place."""
    pid: int
    """The level's process."""
    tid: int
    """The lane's thread; 0 where the process is meant."""
    args: dict[Literal["name", "sort_index"], str | int]
    """Its name as it is shown, or its place from the top."""


EventDocument = SliceDocument | FlowDocument | NameDocument


class CostsDocument(Document):
    """What each thing takes on the recording's clock: numbers that were chosen."""

    python_call_ns: int
    """A call of a function of relay and runtime."""
    launch_ns: int
    """The host's share of an operator."""
    replay_ns: int
    """The host's share of a graph's replay."""
    event_ns: int
    """The host's share of recording an event, or of a stream's wait for one."""
    op_ns: int
    """An operator on the device."""
    product_ns: int
    """An operator that reads weights or a cache."""
    copy_ns: int
    """A copy between host and device, beside its bytes."""
    bytes_per_ns: int
    """How fast its bytes cross."""


class TracedLevelDocument(Document):
    """What a step came to at one level: means over the steps."""

    level: Level
    """What the host is told about lengths."""
    is_planned: bool
    """Whether it is the plan's own."""
    pid: int
    """Its process among the events."""
    step_us: float
    """A step, by the host's clock."""
    lengths_us: float
    """How long the host waits for lengths."""
    tokens_us: float
    """How long the host waits for tokens."""
    idle_us: float
    """How long the forward stream runs nothing."""
    bytes_to_host: float
    """What crosses from the device to the host."""
    bytes_of_lengths: float
    """That of it which is lengths."""


class TraceDetails(Document):
    """What was run, by which clock, and what it came to."""

    plan: str
    """The plan's fingerprint."""
    level: Level
    """The plan's `host_seq_lens`."""
    decided_by: str
    """Who holds it there."""
    clock: Literal["simulated", "torch.profiler"]
    """Where the times come from."""
    clock_says: str
    """What they mean, in a sentence."""
    costs: CostsDocument | None
    """What the recording's clock counts; null where times were measured."""
    device: str
    """The torch device."""
    num_steps: int
    """Decode steps at each level."""
    batch_size: int
    """Requests of each."""
    drafts: DraftsDocument | None
    """How they speculate; null where they do not."""
    relays_lengths: bool
    """Whether lengths are relayed from step to step, so that the level matters."""
    stand_in: str | None
    """Whose code ran in the place of whose; null where each backend's own did."""
    changes: list[WorsenedDocument]
    """Values that a stand-in made worse than they were decided."""
    not_here: list[str]
    """Flags of the server that do not hold here."""
    levels: list[TracedLevelDocument]
    """From the most that the host is told to the least."""
    left_out: list[LeftOutDocument]
    """Levels that were not run."""
    versions: dict[str, str]
    """Releases, and the rules, that it is of."""


class TraceDocument(Document):
    """Steps of a server's configuration as a timeline, at each level that it can run with."""

    schema_: Annotated[Literal["backend-caps/trace@1"], Field(alias="schema")]
    displayTimeUnit: Literal["ms"] = "ms"  # noqa: N815 - the format's name
    """What viewers count in; times are microseconds whatever it says."""
    otherData: TraceDetails  # noqa: N815 - the format's name
    """What was run, and what it came to."""
    traceEvents: list[EventDocument]  # noqa: N815 - the format's name
    """Names first, then slices by process, thread and time, then flows."""
