"""Trees of drafts in captured forwards: what each token sees comes as a mask."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from backend_caps import BatchKind, HostSeqLens
from backend_caps.relay import DeviceStreams
from backend_caps.runtime.graphs.buffers import GraphBuffers
from backend_caps.simulator import simulate
from backend_caps.startup.graph_modes import uniform_buckets
from tests.runtime.graphs.rig import BUCKETS, DRAFTS, MAX_CONTEXT_LEN, SIMULATED, Rig
from tests.runtime.graphs.spies import WatchedPadded

SINGLE, UNIFORM, _ = BatchKind
LARGEST = BUCKETS[UNIFORM][-1].batch_size
MASK_SIZE = LARGEST * DRAFTS * MAX_CONTEXT_LEN
LENGTHS = (4, 0, 21, 9)


def _rig(streams: DeviceStreams) -> Rig:
    """Capture trees, with room for the masks of the largest batch."""
    return Rig(streams, BUCKETS[UNIFORM], mask_size=MASK_SIZE)


@pytest.mark.parametrize("mirror", [True, False], ids=["mirror", "no mirror"])
@pytest.mark.parametrize("in_place", [True, False], ids=["in place", "apart"])
def test_replay_of_trees_scores_as_an_eager_forward(
    mirror: bool, in_place: bool, streams: DeviceStreams
) -> None:
    """Whatever trees came before, and wherever the mask was made, the scores are the eager ones."""
    rig = _rig(streams)

    for seed, count in enumerate((4, 1, 3, 2, 4)):
        alone = rig.tree_batch(LENGTHS[:count], seed=seed, mirror=mirror)
        eager = rig.eager(alone)
        batch = rig.tree_batch(LENGTHS[:count], seed=seed, mirror=mirror, in_place=in_place)

        torch.testing.assert_close(rig.replayed(batch), eager, atol=1e-4, rtol=1e-4)


def test_replay_of_trees_reads_the_mask_of_each_time(streams: DeviceStreams) -> None:
    """A graph sees what the batch's mask says, and not what that of its capture said."""
    rig = _rig(streams)
    batch = rig.tree_batch(LENGTHS[:2])
    mask = torch.ones(MASK_SIZE, dtype=torch.bool, device=streams.device)

    of_trees, of_chains = (rig.replayed(each) for each in (batch, replace(batch, tree_mask=mask)))

    assert not torch.allclose(of_trees, of_chains, atol=1e-3)


def test_replay_of_trees_writes_the_cache_as_an_eager_forward(streams: DeviceStreams) -> None:
    """Padded requests, which a mask has no entries for, write nothing that is somebody's."""
    rig, eager = _rig(streams), _rig(streams)

    rig.replay(rig.tree_batch(LENGTHS[:3], in_place=True, mirror=False))
    eager.run(eager.tree_batch(LENGTHS[:3], mirror=False))

    torch.testing.assert_close(rig.cache(), eager.cache(), atol=1e-4, rtol=1e-4)


def test_mask_that_was_made_in_place_is_not_copied() -> None:
    """It is where the graph reads it already: a replay costs one launch less."""
    with simulate("lazy") as simulation:
        rig = _rig(DeviceStreams("sim", SIMULATED))
        num_ops = []
        for in_place in (True, False):
            batch = rig.tree_batch(LENGTHS, in_place=in_place)
            before = simulation.counts
            rig.replay(batch)
            num_ops.append((simulation.counts - before).num_ops)

    assert num_ops[1] - num_ops[0] == 1


@pytest.mark.parametrize(("mask_size", "tree"), [(MASK_SIZE, False), (0, True)])
def test_graph_holds_trees_or_chains_and_not_both(
    mask_size: int, tree: bool, streams: DeviceStreams
) -> None:
    """What was captured with a mask reads one, and what was captured without reads none."""
    rig = Rig(streams, BUCKETS[UNIFORM], mask_size=mask_size)

    batch = rig.tree_batch(LENGTHS)

    assert not rig.runner.holds(batch if tree else replace(batch, tree_mask=None))
    assert rig.runner.holds(replace(batch, tree_mask=None) if tree else batch)


@pytest.mark.parametrize(("spare", "expected"), [(0, True), (1, False)])
def test_graph_holds_masks_that_its_memory_has_room_for(
    spare: int, expected: bool, streams: DeviceStreams
) -> None:
    """A mask that is larger than the buffer does not fit, whatever the batch is."""
    rig = _rig(streams)
    mask = torch.ones(MASK_SIZE + spare, dtype=torch.bool, device=streams.device)

    batch = replace(rig.tree_batch(LENGTHS), tree_mask=mask)

    assert rig.runner.holds(batch) is expected


def test_graph_of_single_tokens_reads_no_mask(streams: DeviceStreams) -> None:
    """Memory that is there for trees is none of a plain decode's."""
    rig = Rig(streams, BUCKETS[SINGLE], mask_size=MASK_SIZE)

    batch = rig.batch([(4, 1), (9, 1)], kind=SINGLE)

    assert rig.runner.holds(batch)
    torch.testing.assert_close(rig.replayed(batch), rig.eager(batch), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("mask_size", "batch_size", "expected"),
    [
        pytest.param(MASK_SIZE, LARGEST, (MASK_SIZE,), id="the largest batch"),
        pytest.param(MASK_SIZE, 1, (MASK_SIZE,), id="one request"),
        pytest.param(MASK_SIZE, LARGEST + 1, (), id="more than any graph holds"),
        pytest.param(0, 1, (None,), id="no trees"),
    ],
)
def test_memory_for_masks_is_given_to_what_a_graph_holds(
    mask_size: int, batch_size: int, expected: tuple[int | None, ...], streams: DeviceStreams
) -> None:
    """Who will replay makes its mask there; who will not makes one of its own."""
    rig = Rig(streams, BUCKETS[UNIFORM], mask_size=mask_size)

    buffers = rig.runner.mask_buffers(batch_size)

    assert tuple(None if own is None else own.numel() for own in buffers) == expected


def test_memory_for_masks_shows_everything_at_first() -> None:
    """Before any batch, each token sees all before it."""
    buffers = GraphBuffers(BUCKETS[UNIFORM], torch.device("cpu"), 24)

    assert buffers.tree_mask is not None
    assert buffers.tree_mask.tolist() == [True] * 24


def test_absence_survives_padding_and_replay_of_trees(streams: DeviceStreams) -> None:
    """A tree whose lengths no host knows is padded to one like it, after one that had a mirror."""
    rig = Rig(streams, BUCKETS[UNIFORM], build=WatchedPadded, mask_size=MASK_SIZE)
    assert isinstance(rig.backend, WatchedPadded)
    rig.replay(rig.tree_batch(LENGTHS))

    rig.replay(rig.tree_batch(LENGTHS[:3], mirror=False))

    padded = rig.backend.out_graph[-1]
    assert padded.batch_size == LARGEST
    lengths = (padded.seq_lens_cpu, padded.seq_lens_sum, padded.seq_lens_cpu_upper_bound)
    assert lengths == (None, None, None)


@pytest.mark.parametrize("level", list(HostSeqLens))
def test_capture_of_trees_has_the_buffer_as_its_mask(
    level: HostSeqLens, streams: DeviceStreams
) -> None:
    """Captures, and every replay, are handed the same memory as the mask."""
    rig = Rig(
        streams,
        BUCKETS[UNIFORM],
        build=WatchedPadded,
        mask_size=MASK_SIZE,
        host_seq_lens=level,
    )
    assert isinstance(rig.backend, WatchedPadded)

    rig.replay(rig.tree_batch(LENGTHS[:1]))

    (buffer,) = rig.runner.mask_buffers(1)
    assert all(batch.tree_mask is buffer for batch in rig.backend.out_graph)


@pytest.mark.parametrize(
    ("num_draft_tokens", "expected"), [(1, (SINGLE, 2, 2)), (4, (UNIFORM, 2, 8))]
)
def test_bucket_of_a_verify_has_a_tree_a_request(
    num_draft_tokens: int, expected: tuple[BatchKind, int, int]
) -> None:
    """Every request brings as many tokens as its tree has."""
    (bucket,) = uniform_buckets((2,), num_draft_tokens)

    assert (bucket.kind, bucket.batch_size, bucket.num_tokens) == expected
    assert bucket.tokens_each == num_draft_tokens
