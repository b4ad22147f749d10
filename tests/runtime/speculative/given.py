"""Speculative steps whose drafts are given, right and wrong ones, over random contexts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from backend_caps import HostSeqLens
from backend_caps.relay import DeviceStreams, FutureMap, RelayPayload, StepStreams
from backend_caps.relay.streams import EventLike
from backend_caps.runtime import ForwardBatch, GraphMode
from backend_caps.runtime.batch import ForwardMode, ScheduleBatch
from backend_caps.runtime.graphs.runner import Computed
from backend_caps.runtime.memory import PagePool, Pools, RequestMemory, Resources
from backend_caps.runtime.speculation import Algorithm, SpecSettings
from backend_caps.runtime.speculative.contexts import Contexts
from backend_caps.runtime.speculative.drafter import DraftState
from backend_caps.runtime.speculative.runner import SpeculativeRunner
from backend_caps.runtime.speculative.tree import Accepted, DraftTree
from backend_caps.runtime.staging import Staging
from backend_caps.runtime.stats import StepClock
from backend_caps.runtime.step import StepOutput, TargetRunner
from tests.runtime.graphs.rig import CONFIG, MAX_REQUESTS
from tests.runtime.memories import make_request
from tests.runtime.speculative.drafted import HostTree, tree_of
from tests.runtime.two_batches import World

CHAIN = SpecSettings(algorithm=Algorithm.EAGLE, topk=1, num_steps=2, num_draft_tokens=3)
TREE = SpecSettings(algorithm=Algorithm.EAGLE, topk=2, num_steps=2, num_draft_tokens=5)
BRANCHES = (0, 0, 0, 2, 2)
"""The parent of each node of a tree: the path that may be right is its last one, 0, 2, 4."""
LENGTHS = (5, 0, 12)
ROOTS = (3, 7, 11)
ROWS = (4, 1, 6)
NUM_RIGHT = (2, 1, 0)
"""Right drafts of each request."""


class Given:
    """Draft what it is asked to, and note who comes to it when."""

    def __init__(self, trees: DraftTree, log: list[str]) -> None:
        self._trees = trees
        self._log = log
        self.reads_done: EventLike | None = None
        self.verified: EventLike | None = None
        self.states: Tensor | None = None
        """What it was handed of the target."""
        self.next_ids: Tensor | None = None
        self.accepted: Accepted | None = None

    def tree(self, batch: ScheduleBatch, contexts: Contexts) -> DraftTree:
        """Return the trees."""
        del batch, contexts
        self._log.append("tree")
        return self._trees

    def follow_prompts(
        self, forward: ForwardBatch, features: Tensor, next_ids: Tensor
    ) -> RelayPayload:
        """Note what follows prompts."""
        del forward
        self._log.append("follow")
        self.states, self.next_ids = features, next_ids
        return RelayPayload(next_ids)

    def follow_accepted(
        self, contexts: Contexts, accepted: Accepted, features: Tensor, verified: EventLike | None
    ) -> tuple[RelayPayload, EventLike | None]:
        """Note what was accepted."""
        del contexts
        self._log.append("follow")
        self.states, self.accepted, self.verified = features, accepted, verified
        return RelayPayload(accepted.bonus_tokens), self.reads_done


class Noted(FutureMap):
    """A relay that notes what it is given."""

    log: list[str]
    lengths: Tensor
    tokens: Tensor

    def publish(self, req_pool_indices: Tensor, seq_lens: Tensor) -> None:
        """Note lengths."""
        self.log.append("publish")
        self.lengths = seq_lens
        super().publish(req_pool_indices, seq_lens)

    def stash(self, req_pool_indices: Tensor, payload: RelayPayload) -> None:
        """Note tokens."""
        self.log.append("stash")
        self.tokens = payload.bonus_tokens
        super().stash(req_pool_indices, payload)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A runner, and what it works on."""

    world: World
    runner: SpeculativeRunner
    drafter: Given
    relay: Noted
    memory: RequestMemory
    log: list[str]

    def batch(self) -> ScheduleBatch:
        """Make a decode step of three requests, whose tokens the relay has brought."""
        batch = ScheduleBatch.empty(self.memory)
        batch.mode = ForwardMode.DECODE
        batch.requests = tuple(make_request(number) for number in (1, 2, 3))
        batch.req_pool_indices = batch.req_pool_indices_cpu = torch.tensor(ROWS)
        batch.seq_lens, batch.seq_lens_cpu, batch.seq_lens_sum = torch.tensor(LENGTHS), None, None
        batch.spec_info = DraftState()
        return batch

    def run(self, batch: ScheduleBatch | None = None) -> StepOutput:
        """Run a step."""
        return self.runner.run(batch or self.batch(), StepClock(1.0))


class Marked(TargetRunner):
    """A target whose forwards are replays with a marked end of reads."""

    event: EventLike

    def hidden_states(self, batch: ForwardBatch) -> Computed:
        """Compute the states, and mark them."""
        hidden = super().hidden_states(batch)
        return replace(hidden, reads_done=self.event, graph_mode=GraphMode.FULL)


def said_by_the_model(count: int = 3) -> Sequence[Sequence[int]]:
    """Ask the model what follows each root, a token at a time."""
    world, tokens = World("cpu"), torch.tensor(ROOTS)
    said = []
    for step in range(count):
        batch = plain_step(world, tokens, step)
        tokens = world.model.lm_head(world.whole(batch)).argmax(dim=-1)
        said.append(tokens)
    return torch.stack(said, dim=1).tolist()


def plain_step(world: World, tokens: Tensor, step: int) -> ForwardBatch:
    """Make a plain step of a token a request, so many steps behind the contexts."""
    rows, lengths = torch.tensor(ROWS), torch.tensor(LENGTHS) + step
    table = world.site.req_to_token_pool.req_to_token
    return ForwardBatch(
        mode=ForwardMode.DECODE,
        input_ids=tokens,
        positions=lengths,
        req_pool_indices=rows,
        seq_lens=lengths + 1,
        out_cache_loc=table[rows, lengths].long(),
        seq_lens_cpu=None,
        seq_lens_sum=None,
    )


def _wrong(token: int) -> int:
    return (token + 1) % CONFIG.vocab_size


def _trees(settings: SpecSettings) -> DraftTree:
    """Draft what each request will say as far as it is to be right, and then something else."""
    trees = []
    for root, said, num_right in zip(ROOTS, said_by_the_model(), NUM_RIGHT, strict=True):
        path = [said[i] if i < num_right else _wrong(said[i]) for i in range(2)]
        if settings.is_chain:
            trees.append(HostTree(tokens=[root, *path], parents=[0, 0, 1]))
        else:
            others = [_wrong(_wrong(own)) for own in (said[0], said[1])]
            tokens = [root, others[0], path[0], others[1], path[1]]
            trees.append(HostTree(tokens=tokens, parents=BRANCHES))
    return tree_of(trees, settings.num_steps, is_chain=settings.is_chain)


def make_scene(settings: SpecSettings = TREE, *, marked: bool = False) -> Scene:
    """Make a runner of a random model over random contexts."""
    world, log = World("cpu"), list[str]()
    streams = DeviceStreams("cpu")
    rows = world.site.req_to_token_pool
    relay = Noted(
        pool_size=MAX_REQUESTS + 1,
        device="cpu",
        host_seq_lens=HostSeqLens.NONE,
        speculative=True,
        accept_tokens=settings.accept_tokens,
    )
    relay.log = log
    drafter = Given(_trees(settings), log)
    target = (Marked if marked else TargetRunner)(world.model, world.backends(), {})
    if isinstance(target, Marked):
        target.event = streams.event()
    memory = RequestMemory(rows, PagePool(8), Staging(streams))
    resources = Resources(
        memory=memory,
        pools=Pools(rows, world.site.token_to_kv_pool),
        relay=relay,
        step_streams=StepStreams.drawn_from(streams),
    )
    runner = SpeculativeRunner(target, drafter, settings, resources)
    return Scene(world=world, runner=runner, drafter=drafter, relay=relay, memory=memory, log=log)
