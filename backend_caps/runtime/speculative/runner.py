"""A speculative step on the device: draft, verify, accept, publish, draft-extend, stash.

The lengths are published as soon as the target has accepted, so that whoever builds the next step
does not wait for the draft model to catch up. All of it is enqueued at once: how much was accepted
is a tensor, and no shape depends on it.

Shapes: B requests and T tokens in the batch, N tokens in a tree, A the most tokens that a step
accepts, H features of a token.
"""

from __future__ import annotations

import torch
from torch import Tensor

from backend_caps.capability.kind import Phase
from backend_caps.relay import FutureMap, RelayPayload
from backend_caps.runtime.attention import BackendSite
from backend_caps.runtime.batch import ForwardMode, ScheduleBatch
from backend_caps.runtime.forward_batch import ForwardBatch, sampling_of
from backend_caps.runtime.model.sampling import sample_tokens
from backend_caps.runtime.speculation import SpecSettings
from backend_caps.runtime.speculative.contexts import Contexts
from backend_caps.runtime.speculative.drafter import Drafter, DraftState
from backend_caps.runtime.speculative.tree import Accepted, DraftTree, accepted, predict
from backend_caps.runtime.staging import Staging
from backend_caps.runtime.stats import StepClock, now_s
from backend_caps.runtime.worker import StepOutput, TargetRunner


class SpeculativeRunner:
    """Run speculative steps, and the steps of prompts that they start from.

    Args:
        target: says what follows.
        drafter: guesses it.
        settings: how large a tree is.
        relay: carries lengths, tokens and the draft's state to the next step.
        pools: the page table, and the target's KV cache.
        staging: carries host numbers to the device.
    """

    def __init__(
        self,
        *,
        target: TargetRunner,
        drafter: Drafter,
        settings: SpecSettings,
        relay: FutureMap,
        pools: BackendSite,
        staging: Staging,
    ) -> None:
        self._target = target
        self._drafter = drafter
        self._settings = settings
        self._relay = relay
        self._req_to_token = pools.req_to_token_pool.req_to_token
        self._cache = pools.token_to_kv_pool
        self._staging = staging

    def run(self, batch: ScheduleBatch, clock: StepClock) -> StepOutput:
        """Run a step's forwards, and give the relay what the next step starts from.

        Stream: the current one, which must be the forward stream. Sync: the backends'.
        """
        clock.model_s = now_s()
        if batch.mode is ForwardMode.IDLE:
            output = self._run_idle(batch)
        elif batch.spec_info is None:
            output = self._run_prompts(batch)
        else:
            output = self._run_drafts(batch)
        clock.model_done_s = now_s()
        return output

    def _run_idle(self, batch: ScheduleBatch) -> StepOutput:
        """Publish and stash nothing, as a rank does whose peers have requests."""
        empty = batch.seq_lens
        self._relay.publish(batch.req_pool_indices, empty)
        self._relay.stash(batch.req_pool_indices, RelayPayload(empty))
        return StepOutput(tokens=empty, num_tokens=0)

    def _run_prompts(self, batch: ScheduleBatch) -> StepOutput:
        forward = ForwardBatch.init_new(batch, self._staging)
        last = forward.last_token_indices
        assert last is not None, "prompts are cut, and each stretch has a last token"
        hidden = self._target.hidden_states(forward)
        scores = self._target.logits(hidden.states.index_select(0, last))
        tokens = sample_tokens(scores, forward.sampling)
        self._relay.publish(batch.req_pool_indices, batch.seq_lens)
        next_ids = self._next_ids(batch, tokens)
        state = self._drafter.follow_prompts(forward, hidden.features, next_ids)
        self._stash(batch, tokens, state)
        return StepOutput(
            tokens=tokens,
            num_tokens=forward.num_tokens,
            graph_mode=hidden.graph_mode,
            in_halves=hidden.in_halves,
        )

    def _run_drafts(self, batch: ScheduleBatch) -> StepOutput:
        contexts = Contexts.of_step(batch, self._req_to_token)
        tree = self._drafter.tree(batch, contexts)
        verify = self._verify_batch(contexts, tree)
        hidden = self._target.hidden_states(verify)
        sampling = sampling_of(batch, self._staging)
        scores = self._target.logits(hidden.states)
        predicted = predict(scores, tree.depths, contexts.seq_lens, sampling)
        taken = accepted(tree, predicted, num_steps=self._settings.num_steps)
        self._relay.publish(batch.req_pool_indices, contexts.seq_lens + taken.accept_lens)
        if tree.visible is not None:
            self._close_up(verify.out_cache_loc, taken)
        features = hidden.features.view(*tree.tokens.shape, -1)
        followed = self._drafter.follow_accepted(contexts, taken, features)
        self._stash(batch, taken.bonus_tokens, followed.state)
        # The scheduler may write the page table behind the step's last forward that reads it.
        last = followed if self._drafter.reads_table_last else hidden
        return StepOutput(
            tokens=torch.cat((taken.accept_lens[:, None], taken.tokens), dim=1),
            num_tokens=verify.num_tokens,
            reads_done=last.reads_done,
            graph_mode=hidden.graph_mode,
            in_halves=hidden.in_halves,
        )

    def _verify_batch(self, contexts: Contexts, tree: DraftTree) -> ForwardBatch:
        return contexts.forward(
            ForwardMode.VERIFY,
            tree.tokens,
            contexts.seq_lens[:, None] + tree.depths,
            start=0,
            visible=tree.visible,
            mask_buffers=self._target.mask_buffers(Phase.VERIFY, tree.tokens.shape[0]),
        )

    def _close_up(self, out_cache_loc: Tensor, taken: Accepted) -> None:
        """Move what was accepted to the places right behind the context, over what was not."""
        size, num_taken = taken.path.shape
        slots = out_cache_loc.view(size, self._settings.num_draft_tokens)
        sources = slots.gather(1, taken.path)
        self._cache.move(sources.flatten(), slots[:, :num_taken].flatten())

    def _next_ids(self, batch: ScheduleBatch, tokens: Tensor) -> Tensor:
        """Return the token behind each request's tokens: made by the step, or the prompt's."""
        if all(batch.samples):
            return tokens
        own = self._staging.upload((batch.next_prompt_ids,))[0]
        return torch.where(own < 0, tokens, own)

    def _stash(self, batch: ScheduleBatch, tokens: Tensor, state: DraftState) -> None:
        payload = RelayPayload(
            tokens,
            topk_p=state.topk_p,
            topk_index=state.topk_index,
            hidden_states=state.hidden_states,
        )
        self._relay.stash(batch.req_pool_indices, payload)
