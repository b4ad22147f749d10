from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Never

import pytest
import torch
from torch import Tensor

from backend_caps import BatchKind
from backend_caps.kit import Case, Forward, Rig, Scenario, difference
from backend_caps.kit.checks.replay import (
    GRAPHED,
    is_right,
    longest,
    replayed_of,
    story,
    wrong_replay,
)
from backend_caps.kit.probes.graph_probe import BATCH_SIZES, Graphs, buckets_of
from backend_caps.runtime.forward_batch import ForwardBatch
from tests.kit.liars.bases import Padded
from tests.kit.made import HONEST, claiming
from tests.kit.specimen import subject_of

DECODE = Scenario(forward=Forward.DECODE)
every_forward = pytest.mark.parametrize("forward", GRAPHED)


@pytest.fixture
def rig() -> Iterator[Rig]:
    """Make a rig of an honest backend, that runs."""
    rig = Rig(subject=HONEST)
    with rig.running():
        yield rig


class Straying(Padded):
    """Writes keys to the slot behind the first token's, too."""

    def after(self, batch: ForwardBatch, output: Tensor) -> Tensor:
        """Write there."""
        self._kv_pool.get_key_buffer(0).index_fill_(0, batch.out_cache_loc[:1] + 1, 7)
        return output


@every_forward
def test_replay_is_the_eager_run(forward: Forward) -> None:
    """One capture serves a batch of each size, and so does the same backend without a graph."""
    scenario, rig = Scenario(forward=forward), Rig(subject=HONEST)
    scene = story(scenario, 1, [3])[0]
    expected = rig.baseline(scene)

    with rig.running():
        graphs = Graphs(rig, scenario)
        graphs.capture()
        outputs = [graphs.launch(graphs.bring(scene)).attended(), graphs.run(scene).attended()]

    assert [difference(own, expected, graphs.tolerance) for own in outputs] == [None, None]


def test_replay_is_of_the_smallest_graph(rig: Rig) -> None:
    """A batch is padded to the next size that was captured."""
    graphs = Graphs(rig, DECODE)
    graphs.capture()
    padded: list[ForwardBatch] = []
    graphs.proxy.init_forward_metadata_out_graph = padded.append

    for scene in story(DECODE, 0, [3, 2, 1]):
        graphs.launch(graphs.bring(scene))

    assert [own.batch_size for own in padded] == [4, 2, 1]


def test_scene_is_loaded_over_the_one_before(rig: Rig) -> None:
    """Nothing that a scene left in the page table is there when the next one is loaded."""
    graphs = Graphs(rig, DECODE)
    first, second = story(DECODE, 0, [4, 1])
    graphs.load(graphs.bring(first))

    graphs.load(graphs.bring(second))

    assert torch.equal(graphs.pools.req_to_token.cpu(), second.pools.req_to_token)


def test_strays_are_slots_of_others(rig: Rig) -> None:
    """Neither the batch's own slots nor the padding's page are anybody else's."""
    scene = story(DECODE, 0, [3])[0]
    graphs = Graphs(rig, DECODE)
    graphs.capture()

    left = graphs.launch(graphs.bring(scene))

    assert list(left.strays(scene)) == []


def test_stray_write_is_told() -> None:
    """A replay whose output is right may have written to a slot that is not its own."""
    rig = Rig(subject=subject_of(Straying))
    scene = story(DECODE, 0, [1])[0]
    expected = [rig.baseline(scene)]
    slot = int(scene.batch.out_cache_loc) + 1

    with rig.running():
        graphs = Graphs(rig, DECODE)
        graphs.capture()
        wrong = wrong_replay(graphs, [scene], expected)

    assert wrong == (
        f"replay 1, of 1 requests, is not what its eager run is: it wrote to slots [{slot}], "
        f"which are not the batch's"
    )


@pytest.mark.parametrize(
    ("forward", "kind", "sizes"),
    [
        (Forward.DECODE, BatchKind.SINGLE_TOKEN_DECODE, [(1, 1), (2, 2), (4, 4)]),
        (Forward.VERIFY, BatchKind.UNIFORM_BATCH, [(1, 3), (2, 6), (4, 12)]),
        (Forward.TREE, BatchKind.UNIFORM_BATCH, [(1, 5), (2, 10), (4, 20)]),
        (Forward.MIXED, BatchKind.MIXED_BATCH, [(4, 8), (4, 16), (4, 32)]),
    ],
)
def test_buckets_are_of_the_kind_of_a_forward(
    forward: Forward, kind: BatchKind, sizes: list[tuple[int, int]]
) -> None:
    """A mixed batch has its tokens counted, and every other its requests."""
    buckets = buckets_of(Scenario(forward=forward), BATCH_SIZES)

    assert {own.kind for own in buckets} == {kind}
    assert [(own.batch_size, own.num_tokens) for own in buckets] == sizes


@pytest.mark.parametrize("seed", range(4))
def test_story_has_what_graphs_go_wrong_at(seed: int) -> None:
    """A graph comes twice in a row, one is padded, and sizes go up and down."""
    counts = [scene.batch.batch_size for scene in story(DECODE, seed)]
    graphs = [next(size for size in BATCH_SIZES if size >= count) for count in counts]
    steps = [later - own for own, later in pairwise(graphs)]

    assert 3 in counts
    assert 0 in steps
    assert min(steps) < 0 < max(steps)


def test_longest_is_of_several_draws() -> None:
    """A batch that makes a backend's memory grow has a context that is long."""
    drawn = story(DECODE, 2, [4, 4, 4])

    most = longest(DECODE, 2, 4)

    lengths = [int(scene.batch.seq_lens.max()) for scene in drawn]
    assert int(most.batch.seq_lens.max()) == max(lengths)


def test_forwards_with_graphs_are_those_of_claimed_kinds() -> None:
    """Graphs are replayed of the kinds of batches that are claimed, and of no others."""
    subject = claiming(graph_replay=frozenset({BatchKind.UNIFORM_BATCH}))

    assert replayed_of(subject) == (Forward.VERIFY, Forward.TREE)


def test_case_that_raises_is_not_right() -> None:
    """What a backend raises where it claims less is no reason to claim more."""

    def run(_rig: Rig, _case: Case) -> Never:
        raise ValueError("no such batch")

    assert not is_right(run, Rig(subject=HONEST), Case(check="replay"))
