"""Forwards of a draft model, by role: replayed where they were captured, and else eager.

Shapes: B requests and T tokens in the batch, H features of the draft's tokens, F features that a
head reads of a target's token, Tg tokens of the largest graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from backend_caps.capability.kind import Phase, Role
from backend_caps.relay.streams import EventLike, StreamLike
from backend_caps.runtime.attention import ForwardContext, PhaseBackends
from backend_caps.runtime.forward_batch import ForwardBatch
from backend_caps.runtime.graphs import CapturedGraphs, CaptureObserver, GraphMode, capture_graphs
from backend_caps.runtime.model.draft import DraftModel
from backend_caps.runtime.model.layers import AttentionContext
from backend_caps.startup.configuration import Configuration


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftGraphs:
    """What was captured of one role of a draft model."""

    captured: CapturedGraphs = field(default_factory=CapturedGraphs)
    hidden: Tensor | None = None
    """[Tg, H] or [Tg, F] device: where the graphs read hidden states; None where they read none.
    What an earlier batch left behind a smaller one belongs to padded tokens, which write to the
    padding slot alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftStates:
    """What a forward of a draft model leaves on the device."""

    states: Tensor
    """[T, H] device. Of a replay, a view of the graph's memory: the next replay overwrites it."""
    reads_done: EventLike | None = None
    """Behind its last read of buffers that the scheduler writes; None where nobody marked it."""


class DraftRunner:
    """Run forwards of a draft model.

    Args:
        model: the model.
        backends: its attention: of draft steps and prompts, and of what was accepted.
        graphs: what was captured, by role.
    """

    def __init__(
        self,
        model: DraftModel,
        backends: Mapping[Role, PhaseBackends],
        graphs: Mapping[Role, DraftGraphs],
    ) -> None:
        self.model = model
        self._backends = backends
        self._graphs = {role: graphs.get(role, DraftGraphs()) for role in backends}

    def run(self, role: Role, batch: ForwardBatch, hidden: Tensor | None) -> DraftStates:
        """Run a forward.

        batch   T tokens
        hidden  [T, H] device  of a draft step: what the step before returned of each token's
                               parent
                [T, F] device  of prompts and accepted tokens: the target's features
                None           for a model that reads none

        Stream: the current one, which must be the forward stream. Sync: none, where the backend
        declares `sync_free_prepare`.
        """
        phase, backends, graphs = batch.mode.phase, self._backends[role], self._graphs[role]
        backends.observer.began(role, phase)
        replays = graphs.captured.phases.get(phase)
        if replays is not None and replays.holds(batch):
            if graphs.hidden is not None:
                assert hidden is not None, "a draft head continues from hidden states"
                graphs.hidden[: batch.num_tokens].copy_(hidden)
            replayed = replays.replay(batch)
            backends.observer.ended(replays.mode)
            return DraftStates(states=replayed.output, reads_done=replayed.reads_done)
        backend = backends.of(phase)
        backend.init_forward_metadata(batch)
        context = ForwardContext(backend, batch)
        states = _states(self.model, phase, batch.input_ids, batch.positions, hidden, context)
        backends.observer.ended(GraphMode.EAGER)
        return DraftStates(states=states)

    def mask_buffers(self, role: Role, phase: Phase, batch_size: int) -> Sequence[Tensor | None]:
        """Return where the tree mask of a batch is laid out, one entry: drafts run whole.

        returns  [M] bool, device, the memory that a graph reads it from; None: wherever
        """
        replays = self._graphs[role].captured.phases.get(phase)
        buffers = () if replays is None else replays.mask_buffers(batch_size)
        return buffers or (None,)


def capture_draft(
    model: DraftModel,
    backends: PhaseBackends,
    configuration: Configuration,
    *,
    stream: StreamLike,
    mask_size: int = 0,
    observer: CaptureObserver | None = None,
) -> DraftGraphs:
    """Capture the forwards of one role of a draft model, as the configuration has chosen.

    Args:
        model: the model.
        backends: its attention in that role.
        configuration: says what is captured.
        stream: what is captured on: the forward stream.
        mask_size: entries of one request's tree mask in a draft step; 0: its drafts are chains.
        observer: is called after each capture.

    Allocates: the graphs, and room for the hidden states that they read.
    """
    buckets = [
        bucket
        for choice in configuration.graph_choices.get(backends.role, ())
        for bucket in choice.buckets
    ]
    if not buckets:
        return DraftGraphs()
    is_draft_step = backends.role is Role.DRAFT
    phase = Phase.DECODE if is_draft_step else Phase.VERIFY
    hidden: Tensor | None = None
    if model.reads_hidden:
        width = model.config.hidden_size if is_draft_step else model.num_features
        most, streams = max(own.num_tokens for own in buckets), configuration.streams
        with streams.using(stream):
            hidden = torch.zeros(most, width, dtype=model.dtype, device=streams.device)

    def compute(
        input_ids: Tensor,
        positions: Tensor,
        context: AttentionContext,
        last_token_indices: Tensor | None,
        /,
    ) -> Tensor:
        assert last_token_indices is None, "every token of a draft forward is returned"
        read = None if hidden is None else hidden[: input_ids.shape[0]]
        return _states(model, phase, input_ids, positions, read, context)

    captured = capture_graphs(
        compute, backends, configuration, stream=stream, mask_size=mask_size, observer=observer
    )
    if hidden is not None:
        num_bytes = captured.usage.static_bytes + hidden.nbytes
        captured = replace(captured, usage=replace(captured.usage, static_bytes=num_bytes))
    return DraftGraphs(captured=captured, hidden=hidden)


def _states(
    model: DraftModel,
    phase: Phase,
    input_ids: Tensor,
    positions: Tensor,
    hidden: Tensor | None,
    context: AttentionContext,
) -> Tensor:
    """Run the model; all but its own draft steps read features of the target."""
    if hidden is not None and phase is not Phase.DECODE:
        hidden = model.fuse(hidden)
    return model.hidden_states(input_ids, positions, hidden, context)
