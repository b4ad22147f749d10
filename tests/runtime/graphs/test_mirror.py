from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from backend_caps import BatchKind, HostSeqLens
from backend_caps.relay import DeviceStreams
from backend_caps.runtime.forward_batch import ForwardBatch
from tests.runtime.graphs.rig import BUCKETS, Requests, Rig
from tests.runtime.graphs.spies import WatchedPadded

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
    bare = replace(batch, seq_lens_cpu=None, seq_lens_sum=None)

    padded = handed_out(rig, batch, bare)[-1]

    lengths = (padded.seq_lens_cpu, padded.seq_lens_sum, padded.seq_lens_cpu_upper_bound)
    assert lengths == (None, None, None)


def test_mirror_that_is_absent_changes_no_logits(streams: DeviceStreams) -> None:
    """A backend that reads no lengths on the host scores the same without a mirror."""
    rig = Rig(streams, BUCKETS[SINGLE])
    batch = rig.batch(THREE, kind=SINGLE)

    logits = rig.replayed(replace(batch, seq_lens_cpu=None, seq_lens_sum=None))

    assert torch.equal(logits, rig.replayed(batch))


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


def test_upper_bound_is_padded(streams: DeviceStreams) -> None:
    """The bound of a padded request is 0, its length."""
    rig = Rig(streams, BUCKETS[SINGLE], build=WatchedPadded)
    batch = rig.batch(THREE, kind=SINGLE)

    bounded = replace(batch, seq_lens_cpu=None, seq_lens_cpu_upper_bound=torch.tensor([7, 8, 12]))
    padded = handed_out(rig, bounded)[-1]

    assert padded.seq_lens_cpu_upper_bound is not None
    assert padded.seq_lens_cpu_upper_bound.tolist() == [7, 8, 12, 0]


def test_extend_lengths_are_padded_on_both_sides(streams: DeviceStreams) -> None:
    """A padded request brings no tokens and has none before them, on device and host."""
    rig = Rig(streams, BUCKETS[MIXED], build=WatchedPadded)

    padded = handed_out(rig, rig.batch(((4, 3), (0, 2), (9, 1)), kind=MIXED))[-1]

    lens, prefixes = padded.extend_seq_lens, padded.extend_prefix_lens
    assert lens is not None
    assert prefixes is not None
    assert tuple(rig.on_host(lens).tolist()) == padded.extend_seq_lens_cpu == (3, 2, 1, 0)
    assert tuple(rig.on_host(prefixes).tolist()) == padded.extend_prefix_lens_cpu == (4, 0, 9, 0)


def test_extend_lengths_that_are_absent_stay_absent(streams: DeviceStreams) -> None:
    """A mixed batch whose extend lengths no host knows is padded to one like it."""
    rig = Rig(streams, BUCKETS[MIXED], build=WatchedPadded)
    batch = rig.batch(((4, 3), (0, 2), (9, 1)), kind=MIXED)
    unknown = replace(batch, extend_seq_lens_cpu=None, extend_prefix_lens_cpu=None)

    padded = handed_out(rig, batch, unknown)[-1]

    assert padded.extend_seq_lens_cpu is padded.extend_prefix_lens_cpu is None


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
