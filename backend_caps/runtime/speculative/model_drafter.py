"""Drafts of a model: a head of EAGLE or EAGLE3, or a small model of its own.

The two differ in how far they have read when a step begins. A small model reads tokens, and has
read the bonus token: its context is one longer than the target's. A head reads a token together
with the target's hidden state of the token before, so it stands one place further left: its context
is as long as the target's, and the bonus token was the last that it read.

Shapes: B requests and T tokens in the batch, K candidates that a draft step keeps, S draft steps,
N tokens in a tree, A the most tokens that a step accepts, H features of the draft's tokens, F
features that a head reads of a target's token.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from backend_caps.capability.kind import Phase, Role
from backend_caps.runtime.batch import ForwardMode, ScheduleBatch
from backend_caps.runtime.forward_batch import ForwardBatch
from backend_caps.runtime.speculative.beams import Beams, Candidates, best_tree
from backend_caps.runtime.speculative.contexts import Contexts
from backend_caps.runtime.speculative.draft_runner import DraftRunner
from backend_caps.runtime.speculative.settings import SpecSettings
from backend_caps.runtime.speculative.state import DraftState, Followed
from backend_caps.runtime.speculative.tree import DraftTree
from backend_caps.runtime.speculative.verify import Accepted


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
            return self._state_of(own.states.index_select(0, last))
        self._runner.run(Role.DRAFT, forward, None)
        contexts = Contexts.of_forward(forward, self._req_to_token)
        behind = contexts.forward(
            ForwardMode.EXTEND, next_ids[:, None], forward.seq_lens[:, None], start=0
        )
        return self._state_of(self._runner.run(Role.DRAFT, behind, None).states)

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
        state = self._state_of(_rows_of(own.states.view(size, count, -1), last).squeeze(1))
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
        return self._runner.run(Role.DRAFT, forward, read).states.view(size, topk, -1)

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
