"""A speculative step on the device, with drafts that are given: what it makes, hands on, and when.

What a request says is asked for one token at a time, of the same model over the same contexts.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from backend_caps import Phase
from backend_caps.relay import DeviceStreams
from backend_caps.runtime import ForwardBatch, GraphMode, Request
from backend_caps.runtime.batch import ForwardMode, ScheduleBatch
from backend_caps.runtime.graphs.runner import GraphRunner
from backend_caps.runtime.speculation import SpecSettings
from backend_caps.runtime.step import TargetRunner
from tests.runtime.graphs.rig import CONFIG
from tests.runtime.memories import make_request
from tests.runtime.speculative import given
from tests.runtime.two_batches import World

both = pytest.mark.parametrize("settings", [given.CHAIN, given.TREE], ids=["chain", "tree"])


@both
def test_step_makes_what_the_target_says(settings: SpecSettings) -> None:
    """Each request gets its right drafts and one token more, reported with their number."""
    output = given.make_scene(settings).run()

    counts = [count + 1 for count in given.NUM_RIGHT]
    made = [own[1 : 1 + own[0]] for own in output.tokens.tolist()]
    assert output.tokens[:, 0].tolist() == counts
    assert made == [
        list(own[:count]) for own, count in zip(given.said_by_the_model(), counts, strict=True)
    ]


@both
def test_step_publishes_what_is_committed(settings: SpecSettings) -> None:
    """The next step has its lengths before the draft model catches up, then its first tokens.

    The lengths are those before and what was accepted, the bonus token aside and the root in it.
    """
    scene = given.make_scene(settings)

    scene.run()

    last = [
        own[count] for own, count in zip(given.said_by_the_model(), given.NUM_RIGHT, strict=True)
    ]
    assert scene.relay.lengths.tolist() == [5 + 3, 0 + 2, 12 + 1]
    assert scene.relay.tokens.tolist() == last
    assert scene.log == ["tree", "publish", "follow", "stash"]


@both
def test_step_stores_what_plain_steps_would_have(settings: SpecSettings) -> None:
    """Behind each context are the keys and values of what was accepted, in its order."""
    scene, plain = given.make_scene(settings), World("cpu")
    said = torch.cat(
        (torch.tensor(given.ROOTS)[:, None], torch.tensor(given.said_by_the_model())), dim=1
    )
    for step in range(3):
        plain.whole(given.plain_step(plain, said[:, step], step))

    scene.run()

    for row, length, num_right in zip(given.ROWS, given.LENGTHS, given.NUM_RIGHT, strict=True):
        table = plain.site.req_to_token_pool.req_to_token
        slots = table[row, : length + num_right + 1].long() - 1
        stored, expected = (own.cache()[:, slots] for own in (scene.world, plain))
        torch.testing.assert_close(stored, expected, atol=1e-5, rtol=1e-5)


@both
def test_step_hands_the_target_s_states_on(settings: SpecSettings) -> None:
    """The drafter gets a state of each node, and what was accepted of them."""
    scene = given.make_scene(settings)

    scene.run()

    assert scene.drafter.states is not None
    assert scene.drafter.states.shape == (3, settings.num_draft_tokens, CONFIG.hidden_size)
    assert scene.drafter.accepted is not None
    assert scene.drafter.accepted.accept_lens.tolist() == [3, 2, 1]


@pytest.mark.parametrize(
    ("settings", "expected"), [(given.CHAIN, 0), (given.TREE, 1)], ids=["chain", "tree"]
)
def test_only_trees_are_closed_up(
    settings: SpecSettings, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a chain accepts stands where it belongs, and nothing is moved."""
    scene = given.make_scene(settings)
    cache = scene.world.site.token_to_kv_pool
    moves: list[tuple[Tensor, Tensor]] = []
    monkeypatch.setattr(cache, "move", lambda *slots: moves.append(slots))

    scene.run()

    assert len(moves) == expected


def test_reads_of_a_step_end_where_the_drafter_says() -> None:
    """Draft-extend comes behind the verify: the drafter gets its mark, and says which is last."""
    scene = given.make_scene(marked=True)
    scene.drafter.reads_done = DeviceStreams("cpu").event()

    output = scene.run()

    assert output.reads_done is scene.drafter.reads_done
    assert scene.drafter.verified not in {None, output.reads_done}
    assert output.graph_mode is GraphMode.FULL


def test_idle_step_publishes_and_stashes_nobody() -> None:
    """A rank without requests goes through the same stations."""
    scene = given.make_scene()

    output = scene.run(ScheduleBatch.empty(scene.memory))

    assert scene.log == ["publish", "stash"]
    assert (output.tokens.tolist(), output.num_tokens, output.graph_mode) == (
        [],
        0,
        GraphMode.EAGER,
    )


def _prompts(scene: given.Scene, *cuts: tuple[Request, int]) -> ScheduleBatch:
    """Make a step of prompts, each up to its cut, and bring its tokens."""
    requests = [request for request, _ in cuts]
    for request in requests:
        request.enter(*scene.memory.rows.alloc())
    batch = ScheduleBatch.prepare_for_extend(requests, [cut for _, cut in cuts], scene.memory)
    scene.relay.resolve_future(batch)
    return batch


def test_prompts_that_end_go_on_by_what_was_made() -> None:
    """The draft model reads the first token of the output with the prompt."""
    scene = given.make_scene()

    output = scene.run(_prompts(scene, (make_request(1, [5, 6, 7]), 3), (make_request(2, [8]), 1)))

    assert output.tokens.shape == (2,)
    assert scene.drafter.next_ids is output.tokens


def test_prompts_that_are_cut_go_on_by_their_own_token() -> None:
    """Behind a stretch the prompt's next token is read, and not what the target would say."""
    scene = given.make_scene()

    output = scene.run(
        _prompts(scene, (make_request(1, [5, 6, 7, 9]), 2), (make_request(2, [8]), 1))
    )

    assert scene.drafter.next_ids is not None
    assert scene.drafter.next_ids.tolist() == [7, output.tokens.tolist()[1]]
    assert output.tokens.tolist()[0] != 7


def _verify(world: World) -> ForwardBatch:
    """Make a verify of chains."""
    return world.batch(ForwardMode.VERIFY, [(cached, 3) for cached in (4, 0, 19, 9)])


@pytest.mark.parametrize("mode", [ForwardMode.VERIFY, ForwardMode.EXTEND])
def test_states_are_those_of_the_whole_model(mode: ForwardMode) -> None:
    """Without a graph each token has its state, whatever the step is."""
    world, other = World("cpu"), World("cpu")
    target = TargetRunner(world.model, world.backends(), {})
    batch = world.batch(mode, [(4, 2), (0, 2), (9, 2)])

    hidden = target.hidden_states(batch)

    assert torch.equal(hidden.output, other.whole(batch))
    assert (hidden.reads_done, hidden.graph_mode) == (None, GraphMode.EAGER)


def test_states_of_halves_are_those_of_the_whole() -> None:
    """Under two-batch overlap the halves are joined in the batch's order."""
    world, other = World("cpu"), World("cpu")
    target = TargetRunner(world.model, world.backends(), {}, world.runner())
    batch = _verify(world)

    hidden = target.hidden_states(batch)

    torch.testing.assert_close(hidden.output, other.whole(batch), atol=1e-5, rtol=1e-5)
    assert hidden.graph_mode is GraphMode.EAGER


@pytest.mark.parametrize(("batch_size", "expected"), [(1, (None,)), (2, (None, None))])
def test_target_asks_for_a_mask_of_each_half_that_it_runs(
    batch_size: int, expected: tuple[None, ...]
) -> None:
    """An eager verify in halves takes two masks, and one request's takes one."""
    world = World("cpu")
    graphs: Mapping[Phase, GraphRunner] = {}

    target = TargetRunner(world.model, world.backends(), graphs, world.runner())

    assert target.mask_buffers(Phase.VERIFY, batch_size) == expected
