"""The JSON of a run of prompts: the plan that it ran under, its steps and its outputs."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from backend_caps.report.document import LEFT_OUT, Document
from backend_caps.report.plans import PlanDocument
from backend_caps.report.step_costs import DraftsDocument


class GenerateStepDocument(Document):
    """What one step did, and how long the host took for it."""

    number: int
    """Counted from 1, in the order of their results."""
    mode: Literal["extend", "decode", "mixed", "idle"]
    """What its batch was made of: prompts, last tokens, both, or nothing."""
    graph_mode: Literal["full", "piecewise", "eager"]
    """How its forward ran: as one captured graph, in pieces around attention, or without any."""
    num_requests: int
    """Requests of its batch."""
    num_tokens: int
    """Tokens that its forward computed."""
    num_made: int
    """Tokens that requests got."""
    total_seq_lens: int
    """Tokens of all its contexts."""
    waits_for_lengths: bool
    """Whether the host waited for lengths before the launch."""
    bytes_to_host: int | None
    """What the plan makes cross to the host: tokens, and lengths where the host waits for them;
    null where the device has no streams, for there nothing crosses."""
    bytes_to_device: int | None
    """What the plan makes cross to the device: what the host decided about the batch; null where
    the device has no streams."""
    host_us: float
    """The host's time outside the model, waiting aside, in microseconds."""
    model_us: float
    """The host's time within the model; where the device has streams, that of launching it."""
    wait_us: float | None
    """The host's time waiting for the tokens; null where the device has no streams, for there a
    step is done when its launch returns."""
    accept_lens: Annotated[list[int] | None, LEFT_OUT] = None
    """Tokens that the verify gave each request, its own one included; left out where none was."""


class GraphModeDocument(Document):
    """Whether a mode of running is supported, and why."""

    supported: bool
    """Whether device, backend and engine can."""
    because: list[str]
    """Why they can, or all that keeps them from it."""


class PhaseGraphsDocument(Document):
    """How the batches of one phase run: three things, each with its cause."""

    role: Literal["target", "draft", "draft_extend"]
    """Whose forwards."""
    phase: Literal["prefill", "decode", "verify"]
    """Whose batches."""
    kind: Literal["single_token_decode", "uniform_batch", "mixed_batch"]
    """What they are."""
    supported: dict[Literal["full", "piecewise", "eager"], GraphModeDocument]
    """What device, backend and engine can, the best mode first."""
    requested: Literal["full or piecewise", "full", "piecewise", "eager"]
    """What the flags ask for."""
    requested_because: str
    """The flag that does, or that none asks for less."""
    effective: Literal["full", "piecewise", "eager"]
    """What comes of both."""
    refused: dict[Literal["full", "piecewise"], list[str]]
    """What keeps each better mode from being it."""
    in_halves: bool | None
    """Whether batches of two requests or more run in halves; null where no flag asks for it."""
    in_halves_because: str
    """What runs them so, or keeps them whole."""

    @property
    def name(self) -> str:
        """What the forwards are called in tables, as in a dry run."""
        if self.role == "target":
            return self.phase
        return f"{self.role} prefill" if self.phase == "prefill" else self.role


class GraphsDocument(Document):
    """What was captured before the first step."""

    phases: list[PhaseGraphsDocument]
    """How batches run, by phase."""
    num_graphs: int
    """Captured graphs; a forward in pieces has one more than the model has layers."""
    pool_bytes: int
    """Device memory of the pool that all of them share."""
    static_bytes: int
    """Device memory of what batches are copied to, beside the pool."""


class RunDocument(Document):
    """All steps together."""

    num_prompts: int
    """Prompts that ran."""
    num_prompt_tokens: int
    """Tokens of all of them."""
    num_made: int
    """Tokens that were made."""
    seconds: float
    """How long it took, loading and warming up aside."""
    num_steps: dict[str, int]
    """Steps by mode."""
    num_eager: dict[str, int]
    """Those that no captured graph ran, by mode."""
    num_in_pieces: dict[str, int]
    """Those that captured graphs ran around their attentions, by mode."""
    num_in_halves: dict[str, int]
    """Those whose target's forward ran in two halves, by mode."""
    eager_because: dict[str, str]
    """What kept them from the graphs of their phase, by mode; nothing where it has none."""
    page_size: int
    """Tokens of a page of the KV cache."""
    max_total_tokens: int
    """Tokens that the KV cache holds."""
    num_retracted: int
    """Requests that were taken out of the KV cache to make room."""
    planned_waits: int | None
    """Times that the plan makes the host wait for the device, which is no measurement; null where
    the device has no streams, for there nothing waits."""
    bytes_to_host: int | None
    """What the plan makes cross to the host; null where the device has no streams."""
    bytes_to_device: int | None
    """What the plan makes cross to the device; null where the device has no streams."""
    host_us: float
    """The host's time a step outside the model, waiting aside, in microseconds: the mean."""
    overlap: bool
    """Whether a step was launched before the result of the one before was processed."""
    overlap_ratio: float | None
    """The share of the steps' time in flight in which the host did not wait; null where the device
    has no streams, for there a step is done when its launch returns."""


class SpeculationDocument(Document):
    """How drafts went, over all steps."""

    drafts: DraftsDocument
    """How steps speculated."""
    draft_backends: dict[str, str]
    """The backend of the draft model, by role and phase; empty where no model drafts."""
    num_verified: int
    """Verifies, one a request and step."""
    num_drafts: int
    """Drafts that were verified."""
    num_accepted: int
    """Those of them that the target accepted."""
    accept_length: float | None
    """Tokens that a verify gave, its own one included: the mean; null without any verify."""
    planned_waits_for_lengths: int | None
    """Those of the run's planned waits that are for lengths; null where the device has no
    streams."""
    counted_waits: int | None
    """Times that the simulated device saw the host wait, hidden waits included; null on any
    other."""


class OutputDocument(Document):
    """What came of one prompt."""

    prompt: list[int]
    """Its tokens."""
    output: list[int]
    """The tokens that followed."""
    finish_reason: Literal["stop", "length", "abort"]
    """Why they ended: by a stop token, by their number, or given up."""


class SimulationDocument(Document):
    """What the simulated device did with the steps."""

    schedule: str
    """The order that its work ran in; the same word gives the same order again."""
    hidden_syncs: list[str]
    """Operators within the steps that made the host wait, each with the line that called it."""


class GenerateDocument(Document):
    """Prompts that ran under a plan."""

    schema_: Annotated[Literal["backend-caps/generate@1"], Field(alias="schema")]
    model: str | None
    """The model's folder; null for the small one with random weights."""
    draft_model: Annotated[str | None, LEFT_OUT] = None
    """The folder of the model that drafted; left out where none was named."""
    device: str
    """The torch device that it ran on."""
    backends: dict[str, str]
    """The backend of each phase that runs."""
    plan: PlanDocument
    """What it ran under."""
    graphs: GraphsDocument
    """What was captured, and why."""
    steps: list[GenerateStepDocument]
    """The first steps."""
    run: RunDocument
    """All steps together."""
    speculation: Annotated[SpeculationDocument | None, LEFT_OUT] = None
    """How drafts went; left out where the server does not speculate."""
    outputs: list[OutputDocument]
    """What came of each prompt, in their order."""
    differs_from_plain: Annotated[list[int] | None, LEFT_OUT] = None
    """The prompts, by their place, to which the plain loop gives other tokens; left out unless it
    was compared."""
    simulation: Annotated[SimulationDocument | None, LEFT_OUT] = None
    """What was found on the simulated device; left out on any other."""
    metrics: Annotated[dict[str, float] | None, LEFT_OUT] = None
    """The metrics at the end, by name and labels; left out unless asked for."""
