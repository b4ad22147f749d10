"""Forwards of the target model: its backends and its graphs, from a batch to tokens or states.

Shapes: B rows to score, T tokens in the batch, H features of a token, F features that a draft head
reads of it, V tokens in the vocabulary, A the most tokens that a speculative step accepts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from backend_caps.capability.kind import Phase
from backend_caps.relay.streams import EventLike
from backend_caps.runtime.attention import ForwardContext, PhaseBackends
from backend_caps.runtime.batch import ForwardMode
from backend_caps.runtime.forward_batch import ForwardBatch
from backend_caps.runtime.graphs.capture import PhaseGraphs
from backend_caps.runtime.graphs.runner import Computed, Model
from backend_caps.runtime.model.layers import AttentionContext
from backend_caps.runtime.model.llama import LlamaModel
from backend_caps.runtime.model.sampling import sample_tokens
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Hidden:
    """What a forward of the target leaves on the device."""

    states: Tensor
    """[T, H] device: normed, as the LM head takes them."""
    features: Tensor
    """[T, F] device: what a draft head reads: the same states, or those of several layers."""
    reads_done: EventLike | None = None
    """Behind the last read of buffers that the scheduler writes; None where no event marks it."""
    graph_mode: GraphMode = GraphMode.EAGER
    """How it ran."""
    in_halves: bool = False
    """Whether it ran in two halves."""


class _Forwards:
    """Forwards of the target: replayed, in two halves, or whole.

    Args:
        model: the target.
        backends: its attention, by phase.
        graphs: what was captured, by phase.
        two_batch: runs eager forwards in two halves; None runs them whole. What a graph runs in
            halves was captured so.
    """

    def __init__(
        self,
        model: LlamaModel,
        backends: PhaseBackends,
        graphs: Mapping[Phase, PhaseGraphs],
        two_batch: TwoBatchRunner | None = None,
    ) -> None:
        self.model = model
        self.backends = backends
        self._graphs = graphs
        self._two_batch = two_batch

    def _run(self, batch: ForwardBatch, *, scores: bool) -> Computed:
        """Run a forward, between the calls of the observer.

        Args:
            batch: what it is of.
            scores: whether the LM head is part of it; graphs are captured of the same.
        """
        phase, observer = batch.mode.phase, self.backends.observer
        observer.began(self.backends.role, phase)
        graphs = self._graphs.get(phase)
        if graphs is not None and graphs.holds(batch):
            computed = graphs.replay(batch)
        else:
            computed = self._eager(batch, phase, scores=scores)
        observer.ended(computed.graph_mode)
        return computed

    def _eager(self, batch: ForwardBatch, phase: Phase, *, scores: bool) -> Computed:
        two_batch = self._two_batch
        if two_batch is not None and two_batch.cuts(phase, batch.batch_size):
            compute = two_batch if scores else two_batch.hidden_states
            return Computed(output=compute(batch, phase), in_halves=True)
        backend = self.backends.of(phase)
        backend.init_forward_metadata(batch)
        context, ids, positions = ForwardContext(backend, batch), batch.input_ids, batch.positions
        if scores:
            return Computed(output=self.model(ids, positions, context, batch.last_token_indices))
        return Computed(output=self.model.hidden_states(ids, positions, context))


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

    def hidden_states(self, batch: ForwardBatch) -> Hidden:
        """Compute what the LM head scores, and what a draft head reads.

        Stream: the current one, which must be the forward stream. Sync: none, where the backend
        declares `sync_free_prepare`.
        """
        computed, size = self._run(batch, scores=False), self.model.config.hidden_size
        return Hidden(
            states=computed.output[:, :size],
            features=computed.output[:, size:] if self.model.aux_layer_ids else computed.output,
            reads_done=computed.reads_done,
            graph_mode=computed.graph_mode,
            in_halves=computed.in_halves,
        )

    def logits(self, states: Tensor) -> Tensor:
        """Score the vocabulary: [B, H] to [B, V] float32, device. Sync: none."""
        return self.model.logits(states)

    def mask_buffers(self, phase: Phase, batch_size: int) -> Sequence[Tensor | None]:
        """Return where tree masks of a batch are laid out: one of the whole, or one of each half.

        returns  [M] bool, device, the memory that a graph reads them from; None: wherever
        """
        graphs = self._graphs.get(phase)
        buffers = () if graphs is None else graphs.mask_buffers(batch_size)
        cuts = self._two_batch is not None and self._two_batch.cuts(phase, batch_size)
        return buffers or ((None, None) if cuts else (None,))


def states_of(model: LlamaModel) -> Model:
    """Return the part of a model that is captured: all but its LM head.

    A draft head goes on from the states, and the head of the model is one more launch.
    """

    def compute(
        input_ids: Tensor,
        positions: Tensor,
        context: AttentionContext,
        last_token_indices: Tensor | None,
        /,
    ) -> Tensor:
        assert last_token_indices is None, "every token of a verify is scored"
        return model.hidden_states(input_ids, positions, context)

    return compute
