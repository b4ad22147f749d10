"""The mutants of speculative decoding.

A draft that is wrong is refused, so that some of them change no token: they are shown by what steps
accept (`tests.races.accepts`).
"""

from __future__ import annotations

from tests.races.cases import Program
from tests.races.mutation import Kind, Mutant

_RUNNER = "backend_caps/runtime/speculative/runner.py"
_DECODING = "backend_caps/runtime/speculative/decoding.py"
_CONTEXTS = "backend_caps/runtime/speculative/contexts.py"
_DRAFTER = "backend_caps/runtime/speculative/drafter.py"
_SETTINGS = "backend_caps/runtime/speculation.py"
_BATCH = "backend_caps/runtime/batch.py"
_RUN_DRAFTS = "SpeculativeRunner._run_drafts"
_DRAFTS = (Program.DRAFTS,)
_PUBLISH = "self._relay.publish(batch.req_pool_indices, contexts.seq_lens + taken.accept_lens)"

_STEP = (
    Mutant(
        name="publish follows verify",
        kind=Kind.ORDER,
        file=_RUNNER,
        function=_RUN_DRAFTS,
        source=_PUBLISH,
        replacement="self._relay.publish(batch.req_pool_indices, contexts.seq_lens + 1)",
        protects="the next step, from lengths that the target has not said yet",
    ),
    Mutant(
        name="accepted lengths stay off the batch",
        kind=Kind.OUT_OF_PLACE,
        file=_RUNNER,
        function=_RUN_DRAFTS,
        source=_PUBLISH,
        replacement="""
batch.seq_lens += taken.accept_lens
self._relay.publish(batch.req_pool_indices, batch.seq_lens)
""",
        protects="the batch's lengths, which the scheduler and draft-extend still read",
    ),
    Mutant(
        name="row of a prompt is published",
        kind=Kind.STALE,
        file=_RUNNER,
        function="SpeculativeRunner._run_prompts",
        source="self._relay.publish(batch.req_pool_indices, batch.seq_lens)",
        protects="a recycled row, from the length of the request before",
    ),
    Mutant(
        name="bonus tokens are stashed",
        kind=Kind.STALE,
        file=_RUNNER,
        function=_RUN_DRAFTS,
        source="self._stash(batch, taken.bonus_tokens, followed.state)",
        protects="the next step, from growing its trees from old roots",
    ),
    Mutant(
        name="hidden states are stashed",
        kind=Kind.STALE,
        file=_RUNNER,
        function="SpeculativeRunner._stash",
        source="hidden_states=state.hidden_states",
        replacement="hidden_states=None",
        protects="a draft head, from the states of the step or the request before",
    ),
    Mutant(
        name="barrier waits for draft-extend",
        kind=Kind.BARRIER,
        file=_RUNNER,
        function=_RUN_DRAFTS,
        source="followed if self._drafter.reads_table_last else hidden",
        replacement="hidden",
        protects="the page table, which draft-extend reads behind the verify's replay",
    ),
    Mutant(
        name="speculative step keeps its tokens",
        kind=Kind.KEEP_ALIVE,
        file="backend_caps/runtime/step.py",
        function="StepLauncher.launch",
        source="tokens=output.tokens",
        replacement="tokens=output.tokens if output.tokens.dim() == 1 else tokens_cpu",
        protects="what was accepted, made on the forward stream, which the host-copy stream reads",
        programs=_DRAFTS,
    ),
    Mutant(
        name="result of an earlier stay is dropped",
        kind=Kind.STALE,
        file="backend_caps/runtime/scheduler.py",
        function="Scheduler._process",
        source="not samples or request.generation != generation",
        replacement="not samples",
        protects="a request that was retracted under its step, from that step's tokens",
        programs=_DRAFTS,
    ),
)

_CACHE = (
    Mutant(
        name="accepted keys are moved",
        kind=Kind.PLACE,
        file=_RUNNER,
        function=_RUN_DRAFTS,
        source="self._close_up(verify.out_cache_loc, taken)",
        protects="the context, from the keys of drafts that were refused",
    ),
    Mutant(
        name="keys are read before any is moved",
        kind=Kind.ORDER,
        file="backend_caps/runtime/memory.py",
        function="TokenToKVPool.move",
        source="buffer.index_put_((targets,), buffer.index_select(0, sources))",
        replacement="""
for source, target in reversed(list(zip(sources.split(1), targets.split(1), strict=True))):
    buffer.index_put_((target,), buffer.index_select(0, source))
""",
        protects="an accepted draft's keys, from the next one's that take its place",
        programs=_DRAFTS,
    ),
    Mutant(
        name="pages reach behind steps under way",
        kind=Kind.BOUND,
        file=_DECODING,
        function="SpeculativeDecoding.reach",
        source="request.committed_len + accepts * request.num_steps_under_way + slots",
        replacement="request.committed_len + slots",
        protects="the KV cache: what has no page of its own goes to the padding page",
    ),
    Mutant(
        name="pages reach behind drafts",
        kind=Kind.BOUND,
        file=_SETTINGS,
        function="SpecSettings.num_slots",
        source="max(self.num_draft_tokens, drafted, 1 + self.accept_tokens)",
        replacement="1",
        protects="the KV cache: what has no page of its own goes to the padding page",
    ),
    Mutant(
        name="small model's token has a slot",
        kind=Kind.BOUND,
        file=_SETTINGS,
        function="SpecSettings.prompt_slots",
        source="1 if self.algorithm is Algorithm.STANDALONE else 0",
        replacement="0",
        protects="the keys of the first token behind a prompt that fills its pages",
    ),
)

_LENGTHS = (
    Mutant(
        name="forward's device lengths are its own",
        kind=Kind.OUT_OF_PLACE,
        file=_CONTEXTS,
        function="Contexts.forward",
        source="self.seq_lens + added",
        replacement="self.seq_lens.add_(added)",
        protects="the batch's lengths, from those of a forward within its step",
    ),
    Mutant(
        name="forward's mirror is its own",
        kind=Kind.OUT_OF_PLACE,
        file=_CONTEXTS,
        function="Contexts.forward",
        source="self.seq_lens_cpu + added",
        replacement="self.seq_lens_cpu.add_(added)",
        protects="the batch's mirror, from that of a forward within its step",
    ),
    Mutant(
        name="mask is laid out by device lengths",
        kind=Kind.STALE,
        file=_CONTEXTS,
        function="Contexts.forward",
        source="""_tree_masks(
            visible, seq_lens, seq_lens_cpu, self.req_to_token.shape[1], mask_buffers
        )""",
        replacement="""_tree_masks(
            visible,
            seq_lens if self.upper_bound is None
            else (self.upper_bound + added).to(seq_lens.device),
            seq_lens_cpu, self.req_to_token.shape[1], mask_buffers,
        )""",
        protects="what each draft sees, where the host has a bound and no lengths",
    ),
    Mutant(
        name="mixed rows get their lengths late",
        kind=Kind.STALE,
        file=_DECODING,
        function="SpeculativeDecoding.prepare_mixed",
        source="self.prepare(running, clock)",
        replacement="running.prepare_for_speculation(self.reach(running), DraftState())",
        protects="decode rows of a mixed step, from the lengths of the step before",
    ),
    Mutant(
        name="mixed rows grow out of place",
        kind=Kind.OUT_OF_PLACE,
        file=_BATCH,
        function="_plus_one",
        source="lengths_cpu + 1",
        replacement="lengths_cpu.add_(1)",
        protects="the mirror, which is its own bound, from growing twice",
        programs=_DRAFTS,
    ),
    Mutant(
        name="mixed rows begin before their token",
        kind=Kind.PLACE,
        file=_BATCH,
        function="ScheduleBatch._mixed_lens",
        source="running.seq_lens - 1",
        replacement="running.seq_lens",
        protects="prefixes that the device alone knows, from being one token too long",
        programs=_DRAFTS,
    ),
    Mutant(
        name="generations are opened",
        kind=Kind.STALE,
        file=_DECODING,
        function="SpeculativeDecoding.enter",
        source="self._tell(requests, [len(request.prefill) for request in requests])",
        protects="upper bounds, from those of the request before in the row",
    ),
    Mutant(
        name="steps in flight are counted",
        kind=Kind.BOUND,
        file="backend_caps/relay/bounds.py",
        function="LengthBounds.count",
        source="self._in_flight[rows_cpu] = in_flight + 1",
        protects="upper bounds, from lengths that the host has not seen",
        programs=_DRAFTS,
    ),
    Mutant(
        name="bounds count the bonus token",
        kind=Kind.BOUND,
        file="backend_caps/runtime/speculative/drafting.py",
        function="_shape",
        source="accept_tokens=settings.accept_tokens",
        replacement="accept_tokens=settings.num_steps",
        protects="upper bounds, from a step that accepts all of its draft",
    ),
)

_TOKENS = (
    Mutant(
        name="host drafts follow results",
        kind=Kind.ORDER,
        file=_DECODING,
        function="SpeculativeDecoding.follows_results",
        source="self._settings.algorithm is Algorithm.NGRAM",
        replacement="False",
        protects="trees that are looked up on the host, from old roots",
    ),
    Mutant(
        name="nodes have the noise of their places",
        kind=Kind.PLACE,
        file="backend_caps/runtime/speculative/tree.py",
        function="predict",
        source="seq_lens.unsqueeze(1) + depths + 1",
        replacement="seq_lens.unsqueeze(1) + depths",
        protects="sampled tokens, which are those of plain decoding",
    ),
    Mutant(
        name="draft goes on from what was accepted",
        kind=Kind.PLACE,
        file=_DRAFTER,
        function="ModelDrafter.follow_accepted",
        source="accepted.accept_lens - 1",
        replacement="accepted.accept_lens.clamp(max=count - 1)",
        protects="the next drafts, from continuing what is nobody's",
    ),
    Mutant(
        name="drafts stand behind what was read",
        kind=Kind.PLACE,
        file=_DRAFTER,
        function="ModelDrafter._draft_step",
        source="self._ahead + (step - 1) * topk",
        replacement="(step - 1) * topk",
        protects="the keys of the token that a small model has read ahead",
    ),
)

SPECULATIVE_MUTANTS = (*_STEP, *_CACHE, *_LENGTHS, *_TOKENS)
"""All of them."""
