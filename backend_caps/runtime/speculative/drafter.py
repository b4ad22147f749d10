"""Drafts of a model: a head of EAGLE or EAGLE3, or a small model of its own.

The two differ in how far they have read when a step begins. A small model reads tokens, and has
read the bonus token: its context is one longer than the target's. A head reads a token together
with the target's hidden state of the token before, so it stands one place further left: its context
is as long as the target's, and the bonus token was the last that it read.

Shapes: B requests and T tokens in the batch, K candidates that a draft step keeps, S draft steps,
N tokens in a tree, A the most tokens that a step accepts, H features of the draft's tokens, F
features that a head reads of a target's token, Tg tokens of the largest graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor

from backend_caps.capability.kind import Phase, Role
from backend_caps.relay.streams import EventLike, StreamLike
from backend_caps.runtime.attention import ForwardContext, PhaseBackends
from backend_caps.runtime.batch import ForwardMode, ScheduleBatch
from backend_caps.runtime.forward_batch import ForwardBatch
from backend_caps.runtime.graphs.capture import CapturedGraphs, capture_graphs
from backend_caps.runtime.graphs.runner import CaptureObserver, Computed
from backend_caps.runtime.model.draft import DraftModel
from backend_caps.runtime.speculation import SpecSettings
from backend_caps.runtime.speculative.contexts import Contexts
from backend_caps.runtime.speculative.tree import Accepted, Beams, Candidates, DraftTree, best_tree
from backend_caps.startup.configuration import Configuration
from backend_caps.startup.graph_modes import GraphMode


@dataclass(slots=True, kw_only=True)
class DraftState:
    """A batch's `spec_info`: empty when it is built, filled by `FutureMap.resolve_future`."""

    topk_p: Tensor | None = None
    """[B, K] float32, device: probabilities of the first drafts."""
    topk_index: Tensor | None = None
    """[B, K] int64, device: the first drafts."""
    bonus_tokens: Tensor | None = None
    """[B] int64, device: each request's last token, which the drafts continue."""
    hidden_states: Tensor | None = None
    """[B, H] device: where a draft head goes on from; None where the draft reads none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """What a drafter leaves of a step, once it has read what was accepted."""

    state: DraftState
    reads_done: EventLike | None = None
    """Behind its last read of buffers that the scheduler writes; None where no event marks it."""


class Drafter(Protocol):
    """Guess what the target will say. All of it runs on the forward stream, and never waits."""

    @property
    def reads_table_last(self) -> bool:
        """Whether it reads the page table behind the verify."""

    def tree(self, batch: ScheduleBatch, contexts: Contexts) -> DraftTree:
        """Draft from what the last step left, which the relay has put into `batch.spec_info`."""

    def follow_prompts(
        self, forward: ForwardBatch, features: Tensor, next_ids: Tensor
    ) -> DraftState:
        """Take in prompts, and one token behind each.

        forward   the target's forward of them
        features  [T, F] device      the target's `Hidden.features`
        next_ids  [B] int64, device  the token behind each request's tokens
        """

    def follow_accepted(self, contexts: Contexts, accepted: Accepted, features: Tensor) -> Followed:
        """Take in what the target accepted of a tree.

        contexts  as the step found them
        accepted  [B, A] each
        features  [B, N, F] device  the target's `Hidden.features`
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftGraphs:
    """What was captured of one role of a draft model."""

    captured: CapturedGraphs = field(default_factory=CapturedGraphs)
    hidden: Tensor | None = None
    """[Tg, H] or [Tg, F] device: where the graphs read hidden states; None where they read none.
    What an earlier batch left behind a smaller one belongs to padded tokens, which write to the
    padding slot alone."""


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

    def run(self, role: Role, batch: ForwardBatch, hidden: Tensor | None) -> Computed:
        """Run a forward: [T, H] device.

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
            computed = replays.replay(batch)
            backends.observer.ended(computed.graph_mode)
            return computed
        backend = backends.of(phase)
        backend.init_forward_metadata(batch)
        states = _states(self.model, phase, hidden, ForwardContext(backend, batch))
        backends.observer.ended(GraphMode.EAGER)
        return Computed(output=states)

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

    def compute(context: ForwardContext) -> Tensor:
        read = None if hidden is None else hidden[: context.batch.num_tokens]
        return _states(model, phase, read, context)

    captured = capture_graphs(
        compute, backends, configuration, stream=stream, mask_size=mask_size, observer=observer
    )
    if hidden is not None:
        num_bytes = captured.usage.static_bytes + hidden.nbytes
        captured = replace(captured, usage=replace(captured.usage, static_bytes=num_bytes))
    return DraftGraphs(captured=captured, hidden=hidden)


def _states(
    model: DraftModel, phase: Phase, hidden: Tensor | None, context: ForwardContext
) -> Tensor:
    """Run the model; all but its own draft steps read features of the target."""
    if hidden is not None and phase is not Phase.DECODE:
        hidden = model.fuse(hidden)
    batch = context.batch
    return model.hidden_states(batch.input_ids, batch.positions, hidden, context)


class ModelDrafter:
    """Draft with a model, which keeps keys and values of its own in the target's slots.

    Args:
        runner: runs the model.
        settings: how large a tree is.
        req_to_token: [P, W] int32, device, the page table.
    """

    def __init__(self, runner: DraftRunner, settings: SpecSettings, req_to_token: Tensor) -> None:
        self._runner = runner
        self._model = runner.model
        self._settings = settings
        self._req_to_token = req_to_token
        self._ahead = 0 if self._model.reads_hidden else 1
        """How much longer its contexts are than the target's."""

    @property
    def reads_table_last(self) -> bool:
        """True: what was accepted is looked up in it."""
        return True

    def tree(self, batch: ScheduleBatch, contexts: Contexts) -> DraftTree:
        """Draft step by step, each from the best candidates of the one before.

        Stream: the current one, which must be the forward stream. Sync: the backend's.
        """
        left = batch.spec_info
        assert left is not None, "a speculative step has what the last one left"
        assert left.topk_p is not None, "the relay carries candidates"
        assert left.topk_index is not None, "the relay carries candidates"
        assert left.bonus_tokens is not None, "the relay carries tokens"
        topk = self._settings.topk
        candidates = Candidates.start(left.topk_p, left.topk_index)
        states = None if left.hidden_states is None else left.hidden_states[:, None]
        for step in range(1, self._settings.num_steps):
            beams = candidates.beams()
            states = self._draft_step(contexts, beams, step, states)
            probabilities, tokens = self._best(states.flatten(0, 1))
            shape = (-1, topk, topk)
            candidates = candidates.grown(beams, probabilities.view(shape), tokens.view(shape))
        return best_tree(candidates, left.bonus_tokens, self._settings.num_draft_tokens)

    def follow_prompts(
        self, forward: ForwardBatch, features: Tensor, next_ids: Tensor
    ) -> DraftState:
        """Take in prompts, and one token behind each; a small model takes that by itself.

        Stream: the current one, which must be the forward stream. Sync: the backend's.
        """
        last = forward.last_token_indices
        assert last is not None, "prompts are cut, and each stretch has a last token"
        if self._model.reads_hidden:
            shifted = forward.input_ids.roll(-1).index_copy(0, last, next_ids)
            own = self._runner.run(Role.DRAFT, replace(forward, input_ids=shifted), features)
            return self._state_of(own.output.index_select(0, last))
        self._runner.run(Role.DRAFT, forward, None)
        contexts = Contexts.of_forward(forward, self._req_to_token)
        behind = contexts.forward(
            ForwardMode.EXTEND, next_ids[:, None], forward.seq_lens[:, None], start=0
        )
        return self._state_of(self._runner.run(Role.DRAFT, behind, None).output)

    def follow_accepted(self, contexts: Contexts, accepted: Accepted, features: Tensor) -> Followed:
        """Take in as many tokens as can be accepted, and go on from the last that was.

        What stands behind that one belongs to no context, and the next step overwrites it.

        Stream: the current one, which must be the forward stream. Sync: the backend's.
        """
        size, count = accepted.tokens.shape
        places = torch.arange(self._ahead, self._ahead + count, device=features.device)
        positions = contexts.seq_lens[:, None] + places
        forward = contexts.forward(
            ForwardMode.DRAFT_EXTEND, accepted.tokens, positions, start=self._ahead
        )
        read = _rows_of(features, accepted.path).flatten(0, 1) if self._model.reads_hidden else None
        own = self._runner.run(Role.DRAFT_EXTEND, forward, read)
        last = (accepted.accept_lens - 1)[:, None]
        state = self._state_of(_rows_of(own.output.view(size, count, -1), last).squeeze(1))
        return Followed(state=state, reads_done=own.reads_done)

    def _draft_step(
        self, contexts: Contexts, beams: Beams, step: int, states: Tensor | None
    ) -> Tensor:
        """Run the beams of a step, from the states before to theirs: [B, K, H]."""
        size, topk = beams.tokens.shape
        start = self._ahead + (step - 1) * topk
        position = contexts.seq_lens + self._ahead + step - 1
        forward = contexts.forward(
            ForwardMode.DECODE,
            beams.tokens,
            position[:, None].expand(size, topk),
            start=start,
            visible=beams.ancestors,
            mask_buffers=self._runner.mask_buffers(Role.DRAFT, Phase.DECODE, size),
        )
        read = None
        if self._model.reads_hidden:
            assert states is not None, "the relay carries hidden states"
            read = beams.gather_parents(states).flatten(0, 1)
        return self._runner.run(Role.DRAFT, forward, read).output.view(size, topk, -1)

    def _state_of(self, states: Tensor) -> DraftState:
        """Make of the last states [B, H] what the next step starts from."""
        topk_p, topk_index = self._best(states)
        hidden = states if self._model.reads_hidden else None
        return DraftState(topk_p=topk_p, topk_index=topk_index, hidden_states=hidden)

    def _best(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Return how likely the K likeliest tokens of each row are, and their target ids."""
        probabilities = self._model.logits(states).softmax(dim=-1)
        best = probabilities.topk(self._settings.topk, dim=-1)
        return best.values, self._model.target_ids(best.indices)


def _rows_of(states: Tensor, places: Tensor) -> Tensor:
    """Pick rows of [B, R, H] by places [B, Q]: [B, Q, H]."""
    return states.gather(1, places[:, :, None].expand(-1, -1, states.shape[-1]))
