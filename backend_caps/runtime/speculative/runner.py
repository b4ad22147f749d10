"""A speculative step: how the scheduler prepares it, and what it does on the device.

On the device it is draft, verify, accept, publish, draft-extend, stash.

The lengths are published as soon as the target has accepted, so that building the next step
does not wait for the draft model to catch up. All of it is enqueued at once: how much was accepted
is a tensor, and no shape depends on it.

What a step adds to a context is known on the device between its verify and its draft-extend, and
on the host when its result is processed. In the overlapped loop the next step is built before that:
its lengths come from the relay, on the host as far as the plan says. Pages are given out by an
upper bound in every mode. In the plain loop the host has every result, and so the lengths.

Shapes: B requests and T tokens in the batch, N tokens in a tree, A the most tokens that a step
accepts, H features of a token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from backend_caps.capability.kind import Phase
from backend_caps.capability.vocabulary import HostSeqLens
from backend_caps.relay import FutureMap, RelayPayload
from backend_caps.runtime.batch import ForwardMode, ScheduleBatch
from backend_caps.runtime.forward_batch import ForwardBatch, sampling_of
from backend_caps.runtime.memory import Resources
from backend_caps.runtime.model.sampling import sample_tokens
from backend_caps.runtime.request import Request
from backend_caps.runtime.speculation import Algorithm, SpecSettings
from backend_caps.runtime.speculative.contexts import Contexts
from backend_caps.runtime.speculative.drafter import Drafter, DraftState
from backend_caps.runtime.speculative.tree import Accepted, DraftTree, accepted, predict
from backend_caps.runtime.stats import StepClock, now_s
from backend_caps.runtime.step import StepOutput, TargetRunner


class SpeculativeDecoding:
    """Several tokens a step, of which the host does not know how many.

    Args:
        settings: how large a step is.
        relay: has the lengths on the device, and brings them to the host where the plan says so.
        overlapped: whether steps are built before the last one's result is processed.
    """

    def __init__(self, settings: SpecSettings, relay: FutureMap, *, overlapped: bool) -> None:
        self._settings = settings
        self._relay = relay
        self._overlapped = overlapped

    @property
    def follows_results(self) -> bool:
        """Drafts that are looked up on the host continue the last step's tokens.

        Where the relay carries no lengths from step to step, the results do.
        """
        return self._settings.algorithm is Algorithm.NGRAM or not self._overlapped

    def reach(self, running: ScheduleBatch) -> Sequence[int]:
        """Return upper bounds: as if every step under way accepted all of its drafts."""
        accepts, slots = self._settings.accept_tokens, self._settings.num_slots
        return [
            request.committed_len + accepts * request.num_steps_under_way + slots
            for request in running.requests
        ]

    def enter(self, requests: Sequence[Request]) -> None:
        """Open the requests' generations with the lengths that decode starts from."""
        self._tell(requests, [len(request.prefill) for request in requests])

    def prepare(self, running: ScheduleBatch, clock: StepClock) -> None:
        """Make a batch's next step, from the lengths that the relay has.

        Sync: the relay's, which waits for lengths where the plan says so.
        """
        running.prepare_for_speculation(self.reach(running), DraftState())
        clock.built_s = now_s()
        self._relay.resolve_seq_lens_cpu(running)
        if not self._overlapped:
            # Every result was processed, so the host has the lengths without the relay.
            running.seq_lens_cpu = torch.tensor([own.committed_len for own in running.requests])
        elif self._relay.host_seq_lens is HostSeqLens.EXACT:
            clock.num_lengths = len(running.requests)
        clock.lengths_s = now_s()

    def prepare_mixed(self, running: ScheduleBatch, clock: StepClock) -> None:
        """Make a batch's next step one of a token a request, which drafts nothing.

        Sync: as of `prepare`.
        """
        self.prepare(running, clock)
        running.make_plain()

    def commit(self, requests: Sequence[Request]) -> None:
        """Tell the relay what is committed now, so that its upper bounds stay tight."""
        self._tell(requests, [request.committed_len for request in requests])

    def _tell(self, requests: Sequence[Request], lengths: Sequence[int]) -> None:
        if self._relay.host_seq_lens is not HostSeqLens.UPPER_BOUND or not requests:
            return
        numbers = [(own.row, own.generation) for own in requests]
        rows_cpu, generations = torch.tensor(numbers).unbind(dim=1)
        self._relay.commit_lengths(rows_cpu, torch.tensor(lengths), generations)


@dataclass(frozen=True, slots=True)
class SpeculativeRunner:
    """Run speculative steps, and the steps of prompts that they start from."""

    target: TargetRunner
    """Says what follows."""
    drafter: Drafter
    """Guesses it."""
    settings: SpecSettings
    """How large a tree is."""
    resources: Resources
    """The relay, the page table, and the target's KV cache."""

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
        self.resources.relay.publish(batch.req_pool_indices, empty)
        self.resources.relay.stash(batch.req_pool_indices, RelayPayload(empty))
        return StepOutput(tokens=empty, num_tokens=0)

    def _run_prompts(self, batch: ScheduleBatch) -> StepOutput:
        forward = ForwardBatch.init_new(batch)
        hidden = self.target.hidden_states(forward)
        scores = self.target.logits(forward.last_of(hidden.output))
        tokens = sample_tokens(scores, forward.sampling)
        self.resources.relay.publish(batch.req_pool_indices, batch.seq_lens)
        next_ids = self._next_ids(batch, tokens)
        features = self.target.features(hidden.output)
        payload = self.drafter.follow_prompts(forward, features, next_ids)
        self.resources.relay.stash(batch.req_pool_indices, payload)
        return StepOutput(
            tokens=tokens,
            num_tokens=forward.num_tokens,
            graph_mode=hidden.graph_mode,
            in_halves=hidden.in_halves,
        )

    def _run_drafts(self, batch: ScheduleBatch) -> StepOutput:
        contexts = Contexts.of_step(batch, self.resources.pools.req_to_token_pool.req_to_token)
        tree = self.drafter.tree(batch, contexts)
        verify = self._verify_batch(contexts, tree)
        hidden = self.target.hidden_states(verify)
        sampling = sampling_of(batch)
        scores = self.target.logits(hidden.output)
        predicted = predict(scores, tree.depths, contexts.seq_lens, sampling)
        taken = accepted(tree, predicted, num_steps=self.settings.num_steps)
        # Before the draft model catches up: the next step is built from these lengths.
        self.resources.relay.publish(batch.req_pool_indices, contexts.seq_lens + taken.accept_lens)
        # A chain is accepted from its front, so its keys are in place already.
        if tree.visible is not None:
            self._close_up(verify.out_cache_loc, taken)
        features = self.target.features(hidden.output).view(*tree.tokens.shape, -1)
        payload, reads_done = self.drafter.follow_accepted(
            contexts, taken, features, hidden.reads_done
        )
        self.resources.relay.stash(batch.req_pool_indices, payload)
        return StepOutput(
            # One copy brings counts and tokens to the host.
            tokens=torch.cat((taken.accept_lens[:, None], taken.tokens), dim=1),
            num_tokens=verify.num_tokens,
            reads_done=reads_done,
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
            mask_buffers=self.target.mask_buffers(Phase.VERIFY, tree.tokens.shape[0]),
        )

    def _close_up(self, out_cache_loc: Tensor, taken: Accepted) -> None:
        """Move what was accepted to the places right behind the context, over what was not."""
        size, length = taken.path.shape
        slots = out_cache_loc.view(size, self.settings.num_draft_tokens)
        sources = slots.gather(1, taken.path)
        self.resources.pools.token_to_kv_pool.move(sources.flatten(), slots[:, :length].flatten())

    def _next_ids(self, batch: ScheduleBatch, tokens: Tensor) -> Tensor:
        """Return the token behind each request's tokens: made by the step, or the prompt's."""
        if all(batch.samples):
            return tokens
        own = self.resources.staging.upload((batch.next_prompt_ids,))[0]
        return torch.where(own < 0, tokens, own)
