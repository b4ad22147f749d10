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
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from backend_caps.capability.kind import Phase, Role
from backend_caps.relay import RelayPayload
from backend_caps.relay.streams import EventLike, StreamLike
from backend_caps.runtime.attention import ForwardContext, PhaseBackends
from backend_caps.runtime.batch import ForwardMode, ScheduleBatch
from backend_caps.runtime.forward_batch import ForwardBatch
from backend_caps.runtime.graphs.capture import CapturedGraphs, capture_graphs
from backend_caps.runtime.graphs.runner import CaptureObserver, Computed
from backend_caps.runtime.model.draft import DraftModel
from backend_caps.runtime.speculation import SpecSettings
from backend_caps.runtime.speculative.contexts import Contexts
from backend_caps.runtime.speculative.tree import (
    Accepted,
    Beams,
    Candidates,
    DraftTree,
    best_tree,
    rows_of,
)
from backend_caps.startup.configuration import Configuration


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


class Drafter(Protocol):
    """Guess what the target will say. All of it runs on the forward stream, and never waits."""

    def tree(self, batch: ScheduleBatch, contexts: Contexts) -> DraftTree:
        """Draft from what the last step left, which the relay has put into `batch.spec_info`."""

    def follow_prompts(
        self, forward: ForwardBatch, features: Tensor, next_ids: Tensor
    ) -> RelayPayload:
        """Take in prompts and one token behind each; return what the next step starts from.

        forward   the target's forward of them
        features  [T, F] device      the target's `Hidden.features`
        next_ids  [B] int64, device  the token behind each request's tokens
        """

    def follow_accepted(
        self, contexts: Contexts, accepted: Accepted, features: Tensor, verified: EventLike | None
    ) -> tuple[RelayPayload, EventLike | None]:
        """Take in what the target accepted of a tree; return what the next step starts from.

        contexts  as the step found them
        accepted  [B, A] each
        features  [B, N, F] device  the target's `Hidden.features`
        verified  the mark behind the verify's last read of buffers that the scheduler writes, None
                  without one; returned is that of the last forward, here or there, that reads them
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftForwards:
    """Forwards of a draft model in one role: draft steps and prompts, or draft-extends."""

    model: DraftModel
    backends: PhaseBackends
    """Its attention in that role."""
    captured: CapturedGraphs
    hidden: Tensor | None
    """[Tg, H] or [Tg, F] device: where the graphs read hidden states; None where they read none.
    What an earlier batch left behind a smaller one belongs to padded tokens, which write to the
    padding slot alone."""

    def run(self, batch: ForwardBatch, hidden: Tensor | None) -> Computed:
        """Run a forward: [T, H] device.

        batch   T tokens
        hidden  [T, H] device  of a draft step: what the step before returned of each token's
                               parent
                [T, F] device  of prompts and accepted tokens: the target's features
                None           for a model that reads none

        Stream: the current one, which must be the forward stream. Sync: none, where the backend
        declares `sync_free_prepare`.
        """
        phase, observer = batch.mode.phase, self.backends.observer
        observer.began(self.backends.role, phase)
        graphs = self.captured.phases.get(phase)
        if graphs is not None and graphs.holds(batch):
            if self.hidden is not None:
                assert hidden is not None, "a draft head continues from hidden states"
                self.hidden[: batch.num_tokens].copy_(hidden)
            computed = graphs.replay(batch)
        else:
            context = self.backends.prepared(phase, batch)
            computed = Computed(output=_run(self.model, phase, hidden, context))
        observer.ended(computed.graph_mode)
        return computed

    def mask_buffers(self, phase: Phase, batch_size: int) -> Sequence[Tensor | None]:
        """Return where the tree mask of a batch is laid out, one entry: drafts run whole.

        returns  [M] bool, device, the memory that a graph reads it from; None: wherever
        """
        graphs = self.captured.phases.get(phase)
        buffers = () if graphs is None else graphs.mask_buffers(batch_size)
        return buffers or (None,)


def capture_draft(
    model: DraftModel,
    backends: PhaseBackends,
    configuration: Configuration,
    *,
    stream: StreamLike,
    mask_size: int = 0,
    observer: CaptureObserver | None = None,
) -> DraftForwards:
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
    is_draft_step = backends.role is Role.DRAFT
    phase = Phase.DECODE if is_draft_step else Phase.VERIFY
    choices = configuration.graph_choices.get(backends.role, ())
    most = max((bucket.num_tokens for choice in choices for bucket in choice.buckets), default=0)
    hidden: Tensor | None = None
    if model.reads_hidden and most:
        width = model.config.hidden_size if is_draft_step else model.num_features
        with configuration.streams.using(stream):
            hidden = torch.zeros(
                most, width, dtype=model.dtype, device=configuration.streams.device
            )

    def compute(contexts: Sequence[ForwardContext]) -> Tensor:
        (context,) = contexts  # drafts run whole
        read = None if hidden is None else hidden[: context.batch.num_tokens]
        return _run(model, phase, read, context)

    captured = capture_graphs(
        compute, backends, configuration, stream=stream, mask_size=mask_size, observer=observer
    )
    if hidden is not None:
        num_bytes = captured.usage.static_bytes + hidden.nbytes
        captured = replace(captured, usage=replace(captured.usage, static_bytes=num_bytes))
    return DraftForwards(model=model, backends=backends, captured=captured, hidden=hidden)


def _run(model: DraftModel, phase: Phase, hidden: Tensor | None, context: ForwardContext) -> Tensor:
    """Run the model; all but its own draft steps read features of the target."""
    if hidden is not None and phase is not Phase.DECODE:
        hidden = model.fuse(hidden)
    batch = context.batch
    return model.hidden_states(batch.input_ids, batch.positions, hidden, context)


class ModelDrafter:
    """Draft with a model, which keeps keys and values of its own in the target's slots.

    Args:
        model: the model.
        forwards: its forwards, by role.
        settings: how large a tree is.
        req_to_token: [P, W] int32, device, the page table.
    """

    def __init__(
        self,
        model: DraftModel,
        forwards: Mapping[Role, DraftForwards],
        settings: SpecSettings,
        req_to_token: Tensor,
    ) -> None:
        self._model = model
        self._drafts, self._extends = forwards[Role.DRAFT], forwards[Role.DRAFT_EXTEND]
        self._settings = settings
        self._req_to_token = req_to_token
        self._ahead = 0 if self._model.reads_hidden else 1
        """How much longer its contexts are than the target's."""

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
    ) -> RelayPayload:
        """Take in prompts, and one token behind each; a small model takes that by itself.

        Stream: the current one, which must be the forward stream. Sync: the backend's.
        """
        last = forward.last_token_indices
        assert last is not None, "prompts are cut, and each stretch has a last token"
        if self._model.reads_hidden:
            shifted = forward.input_ids.roll(-1).index_copy(0, last, next_ids)
            drafted = self._drafts.run(replace(forward, input_ids=shifted), features)
            return self._payload(next_ids, drafted.output.index_select(0, last))
        self._drafts.run(forward, None)
        contexts = Contexts.of_forward(forward, self._req_to_token)
        behind = contexts.forward(
            ForwardMode.EXTEND, next_ids[:, None], forward.seq_lens[:, None], start=0
        )
        return self._payload(next_ids, self._drafts.run(behind, None).output)

    def follow_accepted(
        self, contexts: Contexts, accepted: Accepted, features: Tensor, verified: EventLike | None
    ) -> tuple[RelayPayload, EventLike | None]:
        """Take in as many tokens as can be accepted, and go on from the last that was.

        What stands behind that one belongs to no context, and the next step overwrites it. The page
        table is read here, behind the verify.

        Stream: the current one, which must be the forward stream. Sync: the backend's.
        """
        del verified
        size, count = accepted.tokens.shape
        places = torch.arange(self._ahead, self._ahead + count, device=features.device)
        positions = contexts.seq_lens[:, None] + places
        forward = contexts.forward(
            ForwardMode.DRAFT_EXTEND, accepted.tokens, positions, start=self._ahead
        )
        read = rows_of(features, accepted.path).flatten(0, 1) if self._model.reads_hidden else None
        extended = self._extends.run(forward, read)
        last = (accepted.accept_lens - 1)[:, None]
        states = rows_of(extended.output.view(size, count, -1), last).squeeze(1)
        return self._payload(accepted.bonus_tokens, states), extended.reads_done

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
            mask_buffers=self._drafts.mask_buffers(Phase.DECODE, size),
        )
        read = None
        if self._model.reads_hidden:
            assert states is not None, "the relay carries hidden states"
            read = rows_of(states, beams.parents).flatten(0, 1)
        return self._drafts.run(forward, read).output.view(size, topk, -1)

    def _payload(self, tokens: Tensor, states: Tensor) -> RelayPayload:
        """Make of the last tokens [B] and states [B, H] what the next step starts from."""
        hidden_states = states if self._model.reads_hidden else None
        return RelayPayload(tokens, *self._best(states), hidden_states=hidden_states)

    def _best(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Return how likely the K likeliest tokens of each row are, and their target ids."""
        probabilities = self._model.logits(states).softmax(dim=-1)
        best = probabilities.topk(self._settings.topk, dim=-1)
        return best.values, self._model.target_ids(best.indices)
