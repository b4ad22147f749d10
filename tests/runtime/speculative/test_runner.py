"""A speculative step on the device, with drafts that are given: what it makes, hands on, and when.

What a request says is asked for one token at a time, of the same model over the same contexts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from backend_caps import HostSeqLens
from backend_caps.relay import DeviceStreams, FutureMap, RelayPayload
from backend_caps.relay.streams import EventLike
from backend_caps.runtime.batch import ForwardMode, ScheduleBatch
from backend_caps.runtime.forward_batch import ForwardBatch
from backend_caps.runtime.memory import PagePool, RequestMemory
from backend_caps.runtime.request import Request
from backend_caps.runtime.speculative.contexts import Contexts
from backend_caps.runtime.speculative.runner import SpeculativeRunner
from backend_caps.runtime.speculative.settings import Algorithm, SpecSettings
from backend_caps.runtime.speculative.state import DraftState
from backend_caps.runtime.speculative.target import Hidden, TargetRunner
from backend_caps.runtime.speculative.tree import DraftTree
from backend_caps.runtime.speculative.verify import Accepted
from backend_caps.runtime.staging import Staging
from backend_caps.runtime.stats import StepClock
from backend_caps.runtime.worker import StepOutput
from tests.runtime.graphs.rig import CONFIG, MAX_REQUESTS
from tests.runtime.memories import make_request, values_of
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
    """Draft what it is told to, and note who comes to it when."""

    def __init__(self, trees: DraftTree, log: list[str]) -> None:
        self._trees = trees
        self._log = log
        self.reads_table_last = True
        self.states: Tensor | None = None
        """What it was handed of the target."""
        self.next_ids: Tensor | None = None
        self.accepted: Accepted | None = None

    def tree(self, batch: ScheduleBatch, contexts: Contexts) -> DraftTree:
        """Return the trees."""
        del batch, contexts
        self._log.append("tree")
        return self._trees

    def follow_prompts(self, forward: ForwardBatch, states: Tensor, next_ids: Tensor) -> DraftState:
        """Note what follows prompts."""
        del forward
        self._log.append("follow")
        self.states, self.next_ids = states, next_ids
        return DraftState()

    def follow_accepted(self, contexts: Contexts, accepted: Accepted, states: Tensor) -> DraftState:
        """Note what was accepted."""
        del contexts
        self._log.append("follow")
        self.states, self.accepted = states, accepted
        return DraftState()


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
    staging: Staging
    log: list[str]

    def batch(self) -> ScheduleBatch:
        """Make a decode step of three requests, whose tokens the relay has brought."""
        batch = ScheduleBatch.empty(self.memory, self.staging)
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

    def hidden_states(self, batch: ForwardBatch) -> Hidden:
        """Compute the states, and mark them."""
        return replace(super().hidden_states(batch), reads_done=self.event, replayed=True)


def _said(count: int = 3) -> Sequence[Sequence[int]]:
    """Ask the model what follows each root, a token at a time."""
    world, tokens = World("cpu"), torch.tensor(ROOTS)
    said = []
    for step in range(count):
        batch = _decode(world, tokens, step)
        tokens = world.model.lm_head(world.whole(batch)).argmax(dim=-1)
        said.append(tokens)
    return torch.stack(said, dim=1).tolist()


def _decode(world: World, tokens: Tensor, step: int) -> ForwardBatch:
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
    for root, said, num_right in zip(ROOTS, _said(), NUM_RIGHT, strict=True):
        path = [said[i] if i < num_right else _wrong(said[i]) for i in range(2)]
        if settings.is_chain:
            trees.append(HostTree(tokens=[root, *path], parents=[0, 0, 1]))
        else:
            others = [_wrong(_wrong(own)) for own in (said[0], said[1])]
            tokens = [root, others[0], path[0], others[1], path[1]]
            trees.append(HostTree(tokens=tokens, parents=BRANCHES))
    return tree_of(trees, settings.num_steps, is_chain=settings.is_chain)


def _scene(settings: SpecSettings = TREE, *, marked: bool = False) -> Scene:
    world, log = World("cpu"), list[str]()
    streams = DeviceStreams("cpu")
    staging, rows = Staging(streams), world.site.req_to_token_pool
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
    runner = SpeculativeRunner(
        target=target,
        drafter=drafter,
        settings=settings,
        relay=relay,
        rows=rows,
        cache=world.site.token_to_kv_pool,
        staging=staging,
    )
    memory = RequestMemory(rows, PagePool(8), staging)
    return Scene(
        world=world,
        runner=runner,
        drafter=drafter,
        relay=relay,
        memory=memory,
        staging=staging,
        log=log,
    )


both = pytest.mark.parametrize("settings", [CHAIN, TREE], ids=["chain", "tree"])


@both
def test_step_makes_what_the_target_says(settings: SpecSettings) -> None:
    """Each request gets its right drafts and one token more, told with their number."""
    output = _scene(settings).run()

    counts = [count + 1 for count in NUM_RIGHT]
    made = [own[1 : 1 + own[0]] for own in output.tokens.tolist()]
    assert output.tokens[:, 0].tolist() == counts
    assert made == [list(own[:count]) for own, count in zip(_said(), counts, strict=True)]


@both
def test_step_publishes_what_is_committed(settings: SpecSettings) -> None:
    """The lengths of before, and what was accepted, the bonus token aside and the root in it."""
    scene = _scene(settings)

    scene.run()

    assert scene.relay.lengths.tolist() == [5 + 3, 0 + 2, 12 + 1]


@both
def test_step_stashes_each_last_token(settings: SpecSettings) -> None:
    """What the next step begins with is what the target said last."""
    scene = _scene(settings)

    scene.run()

    expected = [own[num_right] for own, num_right in zip(_said(), NUM_RIGHT, strict=True)]
    assert scene.relay.tokens.tolist() == expected


@both
def test_step_publishes_before_the_draft_model_catches_up(settings: SpecSettings) -> None:
    """Whoever builds the next step has the lengths by then."""
    scene = _scene(settings)

    scene.run()

    assert scene.log == ["tree", "publish", "follow", "stash"]


@both
def test_step_stores_what_plain_steps_would_have(settings: SpecSettings) -> None:
    """Behind each context are the keys and values of what was accepted, in its order."""
    scene, plain = _scene(settings), World("cpu")
    said = torch.cat((torch.tensor(ROOTS)[:, None], torch.tensor(_said())), dim=1)
    for step in range(3):
        plain.whole(_decode(plain, said[:, step], step))

    scene.run()

    for row, length, num_right in zip(ROWS, LENGTHS, NUM_RIGHT, strict=True):
        table = plain.site.req_to_token_pool.req_to_token
        slots = table[row, : length + num_right + 1].long() - 1
        stored, expected = (own.cache()[:, slots] for own in (scene.world, plain))
        torch.testing.assert_close(stored, expected, atol=1e-5, rtol=1e-5)


@both
def test_step_writes_nothing_to_the_schedulers_batch(settings: SpecSettings) -> None:
    """What was accepted is on the relay, and every field of the batch is what it was."""
    scene = _scene(settings)
    batch = scene.batch()
    before = values_of(batch)

    scene.run(batch)

    assert values_of(batch) == before


@both
def test_step_hands_the_target_s_states_on(settings: SpecSettings) -> None:
    """The drafter gets a state of each node, and what was accepted of them."""
    scene = _scene(settings)

    scene.run()

    assert scene.drafter.states is not None
    assert scene.drafter.states.shape == (3, settings.num_draft_tokens, CONFIG.hidden_size)
    assert scene.drafter.accepted is not None
    assert scene.drafter.accepted.accept_lens.tolist() == [3, 2, 1]


@pytest.mark.parametrize(("settings", "expected"), [(CHAIN, 0), (TREE, 1)], ids=["chain", "tree"])
def test_only_trees_are_closed_up(
    settings: SpecSettings, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a chain accepts stands where it belongs, and nothing is moved."""
    scene = _scene(settings)
    cache = scene.world.site.token_to_kv_pool
    moves: list[tuple[Tensor, Tensor]] = []
    monkeypatch.setattr(cache, "move", lambda *slots: moves.append(slots))

    scene.run()

    assert len(moves) == expected


@pytest.mark.parametrize("reads_table_last", [True, False])
def test_reads_of_a_replay_end_the_step_s_where_no_draft_reads(reads_table_last: bool) -> None:
    """A draft model looks slots up behind the verify, so the verify's mark is not the last."""
    scene = _scene(marked=True)
    scene.drafter.reads_table_last = reads_table_last

    output = scene.run()

    assert (output.reads_done is None) is reads_table_last
    assert output.replayed


def test_step_counts_the_tokens_of_its_verify() -> None:
    """Each request brings a tree."""
    assert _scene(TREE).run().num_tokens == 3 * 5


def test_idle_step_publishes_and_stashes_nobody() -> None:
    """A rank without requests goes through the same stations."""
    scene = _scene()

    output = scene.run(ScheduleBatch.empty(scene.memory, scene.staging))

    assert scene.log == ["publish", "stash"]
    assert (output.tokens.tolist(), output.num_tokens, output.replayed) == ([], 0, False)


def test_step_tells_when_the_model_ran() -> None:
    """The clock has the model's span, of an idle step too."""
    scene, clock = _scene(), StepClock(1.0)

    scene.runner.run(ScheduleBatch.empty(scene.memory, scene.staging), clock)

    assert 1.0 < clock.model_s <= clock.model_done_s


def _prompts(scene: Scene, *cuts: tuple[Request, int]) -> ScheduleBatch:
    """Make a step of prompts, each up to its cut, and bring its tokens."""
    requests = [request for request, _ in cuts]
    for request in requests:
        request.enter(*scene.memory.rows.alloc())
    batch = ScheduleBatch.prepare_for_extend(
        requests, [cut for _, cut in cuts], scene.memory, scene.staging
    )
    scene.relay.resolve_future(batch)
    return batch


def test_prompts_publish_their_lengths_first() -> None:
    """Decode starts from the length of what was run."""
    scene = _scene()

    scene.run(_prompts(scene, (make_request(1, [5, 6, 7]), 3), (make_request(2, [8]), 1)))

    assert scene.log == ["publish", "follow", "stash"]
    assert scene.relay.lengths.tolist() == [3, 1]


def test_prompts_that_end_go_on_by_what_was_made() -> None:
    """The draft model reads the first token of the output with the prompt."""
    scene = _scene()

    output = scene.run(_prompts(scene, (make_request(1, [5, 6, 7]), 3), (make_request(2, [8]), 1)))

    assert output.tokens.shape == (2,)
    assert scene.drafter.next_ids is output.tokens


def test_prompts_that_are_cut_go_on_by_their_own_token() -> None:
    """Behind a stretch the prompt's next token is read, and not what the target would say."""
    scene = _scene()

    output = scene.run(
        _prompts(scene, (make_request(1, [5, 6, 7, 9]), 2), (make_request(2, [8]), 1))
    )

    assert scene.drafter.next_ids is not None
    assert scene.drafter.next_ids.tolist() == [7, output.tokens.tolist()[1]]
    assert output.tokens.tolist()[0] != 7


def test_prompts_hand_a_state_of_every_token_on() -> None:
    """A draft head reads them all."""
    scene = _scene()

    output = scene.run(_prompts(scene, (make_request(1, [5, 6, 7]), 3), (make_request(2, [8]), 1)))

    assert scene.drafter.states is not None
    assert scene.drafter.states.shape == (4, CONFIG.hidden_size)
    assert output.num_tokens == 4
