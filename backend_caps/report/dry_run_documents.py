"""The JSON of a dry run: what was decided, and what some steps of a started server did."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from backend_caps.report.document import LEFT_OUT, Document
from backend_caps.report.generate_documents import GraphsDocument
from backend_caps.report.plans import PlanDocument


class SizeDocument(Document):
    """One size of the server, and what it was here."""

    flag: str
    """The flag that sets it."""
    server: str
    """What the server's flags say."""
    here: str
    """What the run had."""
    is_servers: bool
    """Whether the run had what the server's flags say; true where they say nothing."""


class StandInDocument(Document):
    """A backend whose code ran in the place of another's."""

    role: str
    """Whose forwards."""
    phase: str
    """Which of them."""
    backend: str
    """The one that the server would run."""
    stand_in: str
    """The one that ran."""


class WorsenedDocument(Document):
    """A value that was not as it was decided, because of a stand-in."""

    capability: str
    """Which one."""
    phase: str | None
    """The phase of the value; null for the server's."""
    decided: str
    """What it is on the server."""
    here: str
    """What it was here."""


class ReadsEndDocument(Document):
    """Up to where the schedule stream waits for a phase's forwards."""

    value: str
    """Where the shared reads end: after that the scheduler may write."""
    effect: str
    """What it does, or that it does nothing."""


class PhaseRunDocument(Document):
    """The forwards of one role and phase; of `around`, what is no forward."""

    phase: str
    """`prefill`, `decode`, `verify`, `draft prefill`, `draft`, `draft_extend` or `around`."""
    stand_in: str | None
    """The stand-in whose figures these are, and for which backend; null where none ran."""
    num_forwards: int
    """How many there were; 0 of `around`."""
    num_full: int
    """Those that one captured graph ran."""
    num_piecewise: int
    """Those that captured graphs ran around their attentions."""
    num_eager: int
    """Those that no graph ran."""
    eager_because: list[str]
    """Why those were not replayed."""
    host_waits: int | None
    """Times that the host waited for the device; null where the device is not simulated."""
    waits: dict[str, int] | None
    """What for: `tokens`, `lengths`, or an operator and the line that called it."""
    bytes_to_host: int | None
    """What crossed from the device; null where the device is not simulated."""
    bytes_of_lengths: int | None
    """That of it which is lengths of the relay's mirror."""
    bytes_to_device: int | None
    """What crossed to the device; null where the device is not simulated."""


class StepKindDocument(Document):
    """Steps of one kind."""

    kind: str
    """`prefill`, `mixed`, `decode`, or `speculative`: a draft, its verify and draft-extend."""
    stand_in: str | None
    """The stand-ins of the run's forwards, and for which backends; null where none ran."""
    num_steps: int
    """How many there were."""
    num_replayed: int
    """Those whose target was run by captured graphs."""
    mean_requests: float
    """Requests of a step."""
    num_tokens: int
    """Tokens that the target computed."""
    num_made: int
    """Tokens that requests got."""
    waits_for_lengths: int | None
    """Steps before which the host waited for lengths; null where the device has no streams."""
    planned_bytes_to_host: int | None
    """What the plan makes cross to the host, by its design; null where the device has no
    streams."""
    planned_bytes_to_device: int | None
    """What the plan makes cross to the device, by its design; null likewise."""
    median_us: float | None
    """From the tokens of the step before to its own, in microseconds; null on the simulated
    device, whose times are the simulator's."""
    p95_us: float | None
    """The time that one step in twenty is above; null likewise."""


class RunMemoryDocument(Document):
    """Device memory of the small run, in bytes."""

    stand_in: str | None
    """The stand-ins in what was captured, and for which backends; null where none was."""
    kv_cache_bytes: int
    """Keys and values of the target."""
    draft_kv_cache_bytes: int
    """Keys and values of what drafts."""
    page_table_bytes: int
    """The page table."""
    graph_pool_bytes: int
    """The pool of the captured graphs."""
    graph_static_bytes: int
    """What batches are copied to before a replay."""
    num_graphs: int
    """How many were captured."""


class NotAsDecidedDocument(Document):
    """Something that was not as it was decided."""

    code: str
    """Stable; docs/reference/dry-run.md lists them."""
    phase: str | None
    """Whose forwards; null for the server's."""
    stand_in: str | None
    """The stand-in there, and for which backend; null where none ran."""
    message: str
    """What was, and what was expected."""


class RankRunDocument(Document):
    """What one rank's steps did."""

    rank: int
    """Its number; 0 where there is one."""
    host: str
    """Its machine."""
    num_steps: int
    """Steps whose results were counted."""
    num_retracted: int
    """Requests that were taken out of the KV cache to make room."""
    phases: list[PhaseRunDocument]
    """Its forwards, by role and phase, and what is around them."""
    steps: list[StepKindDocument]
    """Its steps, by kind."""
    hidden_syncs: dict[str, int] | None
    """Operators that made the host wait, by the line that called them, as torch's own watch on
    CUDA tells; null on another device."""
    memory: RunMemoryDocument
    """What it took of the device's memory."""
    findings: list[NotAsDecidedDocument]
    """Where it was not as decided."""


class JoinedDocument(Document):
    """A value in which the ranks' own plans differed."""

    capability: str
    """Which one."""
    phase: str | None
    """The phase of the value; null for the server's."""
    joint: str
    """What all have now."""
    own: dict[str, list[int]]
    """What each had decided by itself, with the ranks."""


class AgreementDocument(Document):
    """How the ranks came to one plan, before any of them started."""

    hosts: list[str]
    """The machine of each rank, by rank."""
    rounds: int
    """Rounds that it took."""
    seconds: float
    """How long it took the slowest rank, its own decision included."""
    equal: list[str]
    """What was the same on all ranks that have it, and has to be."""
    joined: list[JoinedDocument]
    """What was not, and was joined; empty where all had decided the same."""


class DryRunDocument(Document):
    """A server's configuration, decided and started small."""

    schema_: Annotated[Literal["backend-caps/dry-run@1"], Field(alias="schema")]
    plan: PlanDocument
    """What the server would be configured by."""
    future_map: str
    """What the relay gave the host of lengths: a level of `host_seq_lens`."""
    shared_reads_end: dict[str, ReadsEndDocument]
    """Where the barrier stands, by phase."""
    graphs: GraphsDocument
    """How batches ran, by phase, and why."""
    device: str
    """The torch device of the run; `sim` is a simulated one."""
    model: str | None
    """The model's folder; null for a small one with random weights."""
    num_steps: int
    """Steps that were asked for."""
    sizes: list[SizeDocument]
    """How large the server is, and the run was."""
    left_out: list[str]
    """Flags of the server that did not hold in the run, each with why."""
    stand_ins: list[StandInDocument]
    """Whose code ran in the place of whose; empty where each backend ran itself."""
    idle_stand_ins: list[str]
    """Those that were named for roles in which each backend ran itself."""
    changes: list[WorsenedDocument]
    """What was not as it was decided because of them."""
    agreement: Annotated[AgreementDocument | None, LEFT_OUT] = None
    """How the ranks agreed; left out where there is one."""
    ranks: list[RankRunDocument]
    """What the steps did, rank by rank."""
    status: Literal[0, 1]
    """The exit status: 1 where something is not as it was decided, or strict found problems."""
