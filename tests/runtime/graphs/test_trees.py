"""Trees of drafts in captured forwards, whose mask says what each sees, and padded host lengths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from backend_caps import BatchKind, HostSeqLens
from backend_caps.relay import DeviceStreams
from backend_caps.runtime.forward_batch import ForwardBatch
from backend_caps.simulator import simulate
from tests.runtime.graphs.rig import BUCKETS, DRAFTS, MAX_CONTEXT_LEN, SIMULATED, Requests, Rig
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
        eager = rig.eager(rig.tree_batch(LENGTHS[:count], seed=seed, mirror=mirror))
        batch = rig.tree_batch(LENGTHS[:count], seed=seed, mirror=mirror, in_place=in_place)

        torch.testing.assert_close(rig.replayed(batch), eager, atol=1e-4, rtol=1e-4)


def test_replay_of_trees_reads_the_mask_of_each_time(streams: DeviceStreams) -> None:
    """A graph sees what the batch's mask says, and not what that of its capture said."""
    rig = _rig(streams)
    batch = rig.tree_batch(LENGTHS[:2])
    mask = torch.ones(MASK_SIZE, dtype=torch.bool, device=streams.device)

    of_trees, of_chains = (rig.replayed(each) for each in (batch, replace(batch, tree_mask=mask)))

    assert not torch.allclose(of_trees, of_chains, atol=1e-3)


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

    assert rig.runner.holds(replace(rig.tree_batch(LENGTHS), tree_mask=mask)) is expected


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


@pytest.mark.parametrize("level", list(HostSeqLens))
def test_capture_of_trees_has_the_buffer_as_its_mask(
    level: HostSeqLens, streams: DeviceStreams
) -> None:
    """Captures, and every replay, are handed the same memory as the mask."""
    rig = Rig(
        streams, BUCKETS[UNIFORM], build=WatchedPadded, mask_size=MASK_SIZE, host_seq_lens=level
    )
    assert isinstance(rig.backend, WatchedPadded)

    rig.replay(rig.tree_batch(LENGTHS[:1]))

    (buffer,) = rig.runner.mask_buffers(1)
    assert all(batch.tree_mask is buffer for batch in rig.backend.out_graph)


SINGLE, UNIFORM, MIXED = BatchKind
THREE: Requests = ((4, 1), (0, 1), (9, 1))


def handed_out(rig: Rig, *batches: ForwardBatch) -> Sequence[ForwardBatch]:
    """Replay batches, and return what the backend was handed for each of them."""
    assert isinstance(rig.backend, WatchedPadded)
    rig.backend.out_graph.clear()
    for batch in batches:
        rig.replay(batch)
    return rig.backend.out_graph


def test_mirror_that_is_absent_stays_absent(streams: DeviceStreams) -> None:
    """A batch without a mirror is padded to one without, though the batch before had one."""
    rig = Rig(streams, BUCKETS[SINGLE], build=WatchedPadded)
    batch = rig.batch(THREE, kind=SINGLE)

    padded = handed_out(rig, batch, replace(batch, seq_lens_cpu=None, seq_lens_sum=None))[-1]

    lengths = (padded.seq_lens_cpu, padded.seq_lens_sum, padded.seq_lens_cpu_upper_bound)
    assert lengths == (None, None, None)


def test_mirror_is_padded_as_the_device_lengths_are(streams: DeviceStreams) -> None:
    """The padded mirror equals the padded device lengths, and its sum stays what it was."""
    rig = Rig(streams, BUCKETS[SINGLE], build=WatchedPadded)

    padded = handed_out(rig, rig.batch(THREE, kind=SINGLE))[-1]

    assert padded.seq_lens_cpu is not None
    assert padded.seq_lens_cpu.tolist() == rig.on_host(padded.seq_lens).tolist() == [5, 1, 10, 0]
    assert padded.seq_lens_sum == 16


def test_mirror_of_a_replay_outlives_the_next_one(streams: DeviceStreams) -> None:
    """Each padded mirror has memory of its own: a backend may keep it."""
    rig = Rig(streams, BUCKETS[SINGLE], build=WatchedPadded)
    batches = [rig.batch(THREE, kind=SINGLE), rig.batch(((7, 1),) * 3, kind=SINGLE)]

    first, _ = handed_out(rig, *batches)

    assert first.seq_lens_cpu is not None
    assert first.seq_lens_cpu.tolist() == [5, 1, 10, 0]


def test_extend_lengths_are_padded_on_both_sides(streams: DeviceStreams) -> None:
    """A padded request brings no tokens and has none before them, on device and host."""
    rig = Rig(streams, BUCKETS[MIXED], build=WatchedPadded)

    padded = handed_out(rig, rig.batch(((4, 3), (0, 2), (9, 1)), kind=MIXED))[-1]

    lens, prefixes = padded.extend_seq_lens, padded.extend_prefix_lens
    assert lens is not None
    assert prefixes is not None
    assert tuple(rig.on_host(lens).tolist()) == padded.extend_seq_lens_cpu == (3, 2, 1, 0)
    assert tuple(rig.on_host(prefixes).tolist()) == padded.extend_prefix_lens_cpu == (4, 0, 9, 0)


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        pytest.param(HostSeqLens.NONE, (None, None), id="none"),
        pytest.param(HostSeqLens.UPPER_BOUND, (None, [0, 0]), id="upper bound"),
        pytest.param(HostSeqLens.EXACT, ([0, 0], [0, 0]), id="exact"),
    ],
)
def test_capture_has_the_lengths_that_are_promised(
    level: HostSeqLens, expected: tuple[object, object], streams: DeviceStreams
) -> None:
    """A capture is given host lengths where every batch has them, and else none."""
    rig = Rig(streams, BUCKETS[SINGLE][1:2], build=WatchedPadded, host_seq_lens=level)
    assert isinstance(rig.backend, WatchedPadded)

    batch = rig.backend.out_graph[-1]

    given = (batch.seq_lens_cpu, batch.seq_lens_cpu_upper_bound)
    assert tuple(None if own is None else own.tolist() for own in given) == expected
