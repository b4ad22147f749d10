"""A step: from the scheduler's batch through forwards of the target, and its tokens to the host.

Three streams take part. The forward stream waits for the schedule stream, where the batch was
built; the host-copy stream waits for the forward; the schedule stream then waits for the forward's
last read of what the scheduler writes next. The host waits for the tokens alone.

Shapes: B requests in the batch and rows to score, T tokens in the batch, H features of a token, F
features that a draft head reads of it, V tokens in the vocabulary, A the most tokens that a
speculative step accepts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from backend_caps.capability.kind import Phase
from backend_caps.relay import FutureMap, RelayPayload
from backend_caps.relay.streams import EventLike
from backend_caps.runtime.attention import ForwardContext, PhaseBackends
from backend_caps.runtime.batch import ForwardMode, ScheduleBatch
from backend_caps.runtime.forward_batch import ForwardBatch
from backend_caps.runtime.graphs.capture import PhaseGraphs
from backend_caps.runtime.graphs.runner import Computed
from backend_caps.runtime.memory import Resources
from backend_caps.runtime.model.llama import LlamaModel
from backend_caps.runtime.model.sampling import sample_tokens
from backend_caps.runtime.stats import StepClock, now_s
from backend_caps.runtime.two_batch import TwoBatchRunner
from backend_caps.startup.graph_modes import GraphMode


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutput:
    """What a step leaves on the device."""

    tokens: Tensor
    """[B] int64, device: a token of each request; of a speculative step [B, 1 + A], how many tokens
    each request got, and the tokens, of which it accepts at most A."""
    num_tokens: int
    """Tokens that the forwards computed."""
    reads_done: EventLike | None = None
    """Behind the last read of buffers that the scheduler writes; None where no event marks it."""
    graph_mode: GraphMode = GraphMode.EAGER
    """How the target's forward ran."""
    in_halves: bool = False
    """Whether it ran in two halves."""


@dataclass(slots=True, eq=False)
class _Forwards:
    """Forwards of the target: replayed, in two halves, or whole."""

    model: LlamaModel
    """The target."""
    backends: PhaseBackends
    """Its attention, by phase."""
    graphs: Mapping[Phase, PhaseGraphs]
    """What was captured, by phase."""
    two_batch: TwoBatchRunner | None = None
    """Runs eager forwards in two halves; None runs them whole. What a graph runs in halves was
    captured so."""

    def _run(self, batch: ForwardBatch, *, scores: bool) -> Computed:
        """Run a forward, between the calls of the observer.

        Args:
            batch: what it is of.
            scores: whether the LM head is part of it; graphs are captured of the same.
        """
        phase, observer = batch.mode.phase, self.backends.observer
        observer.began(self.backends.role, phase)
        graphs, two_batch = self.graphs.get(phase), self.two_batch
        if graphs is not None and graphs.holds(batch):
            computed = graphs.replay(batch)
        elif two_batch is not None and two_batch.cuts(phase, batch.batch_size):
            hidden = two_batch.hidden_states(batch, phase)
            output = self.model.logits(batch.last_of(hidden)) if scores else hidden
            computed = Computed(output=output, in_halves=True)
        else:
            context = self.backends.prepared(phase, batch)
            forward = scores_of if scores else states_of
            computed = Computed(output=forward(self.model, context))
        observer.ended(computed.graph_mode)
        return computed


class Worker(_Forwards):
    """Run a plain step's forwards, from a batch to its tokens."""

    def forward(self, batch: ForwardBatch) -> StepOutput:
        """Run a step's forward, and choose its tokens.

        Stream: the current one, which must be the forward stream. Sync: none, where the backend
        declares `sync_free_prepare`.
        """
        if batch.mode is ForwardMode.IDLE:
            return StepOutput(tokens=batch.input_ids, num_tokens=0)
        computed = self._run(batch, scores=True)
        return StepOutput(
            tokens=sample_tokens(computed.output, batch.sampling),
            num_tokens=batch.num_tokens,
            reads_done=computed.reads_done,
            graph_mode=computed.graph_mode,
            in_halves=computed.in_halves,
        )


class TargetRunner(_Forwards):
    """Run the target's forwards of a speculative step: hidden states, which drafts go on from."""

    def hidden_states(self, batch: ForwardBatch) -> Computed:
        """Compute what the LM head scores, and what a draft head reads.

        Stream: the current one, which must be the forward stream. Sync: none, where the backend
        declares `sync_free_prepare`.
        """
        return self._run(batch, scores=False)

    def logits(self, states: Tensor) -> Tensor:
        """Score the vocabulary: rows of what `hidden_states` left to [B, V] float32. Sync: none."""
        return self.model.logits(states)

    def features(self, states: Tensor) -> Tensor:
        """Return what a draft head reads of `hidden_states`: [T, F], device."""
        return states[:, self.model.config.hidden_size :] if self.model.aux_layer_ids else states

    def mask_buffers(self, phase: Phase, batch_size: int) -> Sequence[Tensor | None]:
        """Return where tree masks of a batch are laid out: one of the whole, or one of each half.

        returns  [M] bool, device, the memory that a graph reads them from; None: wherever
        """
        graphs = self.graphs.get(phase)
        buffers = () if graphs is None else graphs.mask_buffers(batch_size)
        cuts = self.two_batch is not None and self.two_batch.cuts(phase, batch_size)
        return buffers or ((None, None) if cuts else (None,))


def scores_of(model: LlamaModel, context: ForwardContext) -> Tensor:
    """Score what may come after each request's last token, or after every token: [B, V]."""
    batch = context.batch
    return model(batch.input_ids, batch.positions, context, batch.last_token_indices)


def states_of(model: LlamaModel, context: ForwardContext) -> Tensor:
    """Compute all but the LM head: a draft head goes on from states, and the head is apart."""
    return model.hidden_states(context.batch.input_ids, context.batch.positions, context)


@dataclass(slots=True, kw_only=True)
class Step:
    """A step under way.

    Keep it until its result is processed: its batch's tensors were made on the schedule stream, and
    its tokens on the forward stream, and other streams read them. With
    one step under way while the next is launched, two are alive.
    """

    batch: ScheduleBatch
    """As it was launched; the scheduler's own may be another by now."""
    output: StepOutput
    """What it leaves on the device."""
    tokens_cpu: Tensor
    """Its tokens, pinned host: nothing until `copied`."""
    copied: EventLike
    """Behind the copy of the tokens to the host."""
    clock: StepClock
    """When the host passed the step's stations."""
    bytes_to_host: int
    """What crosses from the device for it."""
    bytes_to_device: int
    """What crosses to the device for it."""


class StepRunner(Protocol):
    """What a step's forwards are, from a batch whose inputs are there to what goes on from it."""

    def run(self, batch: ScheduleBatch, clock: StepClock) -> StepOutput:
        """Run a step's forwards, and give the relay what the next step starts from.

        Stream: the current one, which must be the forward stream.
        """


@dataclass(frozen=True, slots=True)
class PlainRunner:
    """One forward a step."""

    worker: Worker
    """Runs it."""
    relay: FutureMap
    """Carries its tokens to the next one."""

    def run(self, batch: ScheduleBatch, clock: StepClock) -> StepOutput:
        """Run the forward, and stash a token a request.

        Stream: the current one, which must be the forward stream. Sync: the backend's.
        """
        forward = ForwardBatch.init_new(batch)
        clock.model_s = now_s()
        output = self.worker.forward(forward)
        clock.model_done_s = now_s()
        self.relay.stash(batch.req_pool_indices, RelayPayload(output.tokens))
        return output


@dataclass(slots=True, eq=False)
class StepLauncher:
    """Enqueue steps, and wait for their tokens."""

    runner: StepRunner
    """Runs a step's forwards."""
    resources: Resources
    """The relay, and the streams that steps run on."""
    _bytes_staged: int = 0

    def launch(self, batch: ScheduleBatch, clock: StepClock) -> Step:
        """Enqueue a step: its forward, the relay of its tokens, and their way to the host.

        Stream: the current one must be the schedule stream. Sync: none; the runner's own.
        Keeps: nothing; the caller keeps the step.
        """
        # A speculative step has set both while it was prepared.
        if not clock.lengths_s:
            clock.built_s = clock.lengths_s = now_s()
        # The scheduler grows its batch for the next step while this one is still read.
        own, relay, step_streams = batch.copy(), self.resources.relay, self.resources.step_streams
        if own.mode is ForwardMode.DECODE:
            relay.set_input_ids_sentinel(own)
            relay.count_plain_step(own)
        step_streams.forward.wait_stream(step_streams.schedule)
        with self.resources.streams.using(step_streams.forward):
            relay.resolve_future(own)
            output = self.runner.run(own, clock)
        tokens_cpu, copied = self._to_host(output.tokens)
        before, self._bytes_staged = self._bytes_staged, self.resources.staging.num_bytes
        clock.launched_s = now_s()
        return Step(
            batch=own,
            output=output,
            tokens_cpu=tokens_cpu,
            copied=copied,
            clock=clock,
            bytes_to_host=output.tokens.nbytes + relay.bytes_to_host(clock.num_lengths),
            bytes_to_device=self._bytes_staged - before,
        )

    def barrier(self, step: Step) -> None:
        """Put the schedule stream behind a step's last read of what the scheduler writes.

        The scheduler writes the page table. Where no event marks the last read, it is behind all
        that the forward stream has.
        """
        step_streams, reads_done = self.resources.step_streams, step.output.reads_done
        if reads_done is None:
            step_streams.schedule.wait_stream(step_streams.forward)
        else:
            step_streams.schedule.wait_event(reads_done)

    def tokens(self, step: Step) -> list[list[int]]:
        """Return what each request got of a step: a token, or several of a speculative one.

        Sync: the step's copy to the host, and so its forward.
        """
        step.clock.result_s = now_s()
        step.copied.synchronize()
        step.clock.tokens_s = now_s()
        if step.tokens_cpu.dim() == 1:
            return [[token] for token in step.tokens_cpu.tolist()]
        return [tokens[:count] for count, *tokens in step.tokens_cpu.tolist()]

    def _to_host(self, tokens: Tensor) -> tuple[Tensor, EventLike]:
        """Copy a step's tokens on a stream of its own, behind the forward."""
        streams, step_streams = self.resources.streams, self.resources.step_streams
        copied = streams.event()
        if not streams.traits.has_pinned_memory:
            copied.record(step_streams.forward)
            return tokens, copied
        tokens_cpu = streams.empty_pinned(tokens.numel()).view(tokens.shape)
        # On a stream of its own: the next forward must not queue behind the copy.
        step_streams.host_copy.wait_stream(step_streams.forward)
        with streams.using(step_streams.host_copy):
            tokens_cpu.copy_(tokens, non_blocking=True)
            copied.record(step_streams.host_copy)
        return tokens_cpu, copied
