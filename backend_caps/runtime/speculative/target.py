"""The target model in a speculative step: hidden states first, which drafts go on from.

Shapes: B rows to score, T tokens in the batch, H features of a token, F features that a draft head
reads of it, V tokens in the vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from backend_caps.capability.kind import Phase
from backend_caps.relay.streams import EventLike
from backend_caps.runtime.attention import ForwardContext, PhaseBackends
from backend_caps.runtime.forward_batch import ForwardBatch
from backend_caps.runtime.graphs import GraphMode, PhaseGraphs
from backend_caps.runtime.graphs.runner import Model
from backend_caps.runtime.model import LlamaModel
from backend_caps.runtime.model.layers import AttentionContext
from backend_caps.runtime.two_batch import TwoBatchRunner


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
