"""The worker: one role's model, its backends and its graphs, from a forward's batch to tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from backend_caps.capability.kind import Phase
from backend_caps.relay.streams import EventLike
from backend_caps.runtime.attention import ForwardContext, PhaseBackends
from backend_caps.runtime.batch import ForwardMode
from backend_caps.runtime.forward_batch import ForwardBatch
from backend_caps.runtime.graphs import GraphMode, PhaseGraphs
from backend_caps.runtime.model import LlamaModel, sample_tokens
from backend_caps.runtime.two_batch import TwoBatchRunner


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
