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
from backend_caps.runtime.graphs.runner import Model
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
    """Behind the last read of buffers that the scheduler writes; None where nobody marked it."""
    graph_mode: GraphMode = GraphMode.EAGER
    """How the target's forward ran."""
    in_halves: bool = False
    """Whether it ran in two halves."""


class Worker:
    """Run forwards of a model.

    Args:
        model: the model.
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
        self._model = model
        self._backends = backends
        self._graphs = graphs
        self._two_batch = two_batch

    def forward(self, batch: ForwardBatch) -> StepOutput:
        """Run a step's forward, and choose its tokens.

        Stream: the current one, which must be the forward stream. Sync: none, where the backend
        declares `sync_free_prepare`.
        """
        if batch.mode is ForwardMode.IDLE:
            return StepOutput(tokens=batch.input_ids, num_tokens=0)
        phase, observer = batch.mode.phase, self._backends.observer
        observer.began(self._backends.role, phase)
        output = self._run(batch, phase)
        observer.ended(output.graph_mode)
        return output

    def _run(self, batch: ForwardBatch, phase: Phase) -> StepOutput:
        graphs = self._graphs.get(phase)
        if graphs is not None and graphs.holds(batch):
            replayed = graphs.replay(batch)
            tokens = sample_tokens(replayed.output, batch.sampling)
            return StepOutput(
                tokens=tokens,
                num_tokens=batch.num_tokens,
                reads_done=replayed.reads_done,
                graph_mode=graphs.mode,
                in_halves=replayed.in_halves,
            )
        two_batch = self._two_batch
        in_halves = two_batch is not None and two_batch.cuts(phase, batch.batch_size)
        run = two_batch if two_batch is not None and in_halves else self._whole
        tokens = sample_tokens(run(batch, phase), batch.sampling)
        return StepOutput(tokens=tokens, num_tokens=batch.num_tokens, in_halves=in_halves)

    def _whole(self, batch: ForwardBatch, phase: Phase) -> Tensor:
        backend = self._backends.of(phase)
        backend.init_forward_metadata(batch)
        context = ForwardContext(backend, batch)
        return self._model(batch.input_ids, batch.positions, context, batch.last_token_indices)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hidden:
    """What a forward of the target leaves on the device."""

    states: Tensor
    """[T, H] device: normed, as the LM head takes them."""
    features: Tensor
    """[T, F] device: what a draft head reads: the same states, or those of several layers."""
    reads_done: EventLike | None = None
    """Behind the last read of buffers that the scheduler writes; None where nobody marked it."""
    graph_mode: GraphMode = GraphMode.EAGER
    """How it ran."""
    in_halves: bool = False
    """Whether it ran in two halves."""


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


class TargetRunner:
    """Run forwards of the target model.

    Args:
        model: the target.
        backends: its attention, by phase.
        graphs: what was captured of its hidden states, by phase.
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

    def hidden_states(self, batch: ForwardBatch) -> Hidden:
        """Compute what the LM head scores.

        Stream: the current one, which must be the forward stream. Sync: none, where the backend
        declares `sync_free_prepare`.
        """
        phase, observer = batch.mode.phase, self.backends.observer
        observer.began(self.backends.role, phase)
        hidden = self._run(batch, phase)
        observer.ended(hidden.graph_mode)
        return hidden

    def _run(self, batch: ForwardBatch, phase: Phase) -> Hidden:
        graphs = self._graphs.get(phase)
        if graphs is not None and graphs.holds(batch):
            replayed = graphs.replay(batch)
            return self._hidden(
                replayed.output,
                reads_done=replayed.reads_done,
                graph_mode=graphs.mode,
                in_halves=replayed.in_halves,
            )
        if self._two_batch is not None and self._two_batch.cuts(phase, batch.batch_size):
            return self._hidden(self._two_batch.hidden_states(batch, phase), in_halves=True)
        backend = self.backends.of(phase)
        backend.init_forward_metadata(batch)
        context = ForwardContext(backend, batch)
        return self._hidden(self.model.hidden_states(batch.input_ids, batch.positions, context))

    def _hidden(
        self,
        joined: Tensor,
        *,
        reads_done: EventLike | None = None,
        graph_mode: GraphMode = GraphMode.EAGER,
        in_halves: bool = False,
    ) -> Hidden:
        """Tell apart what a forward of the model returned side by side."""
        size = self.model.config.hidden_size
        return Hidden(
            states=joined[:, :size],
            features=joined[:, size:] if self.model.aux_layer_ids else joined,
            reads_done=reads_done,
            graph_mode=graph_mode,
            in_halves=in_halves,
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
