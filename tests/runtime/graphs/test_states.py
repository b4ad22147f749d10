"""Where a speculative step lays the masks of its verify out."""

from __future__ import annotations

import pytest

from backend_caps import BatchKind, HostSeqLens, Phase, SharedReadsEnd
from backend_caps.relay import DeviceStreams
from backend_caps.runtime.graphs.runner import GraphRunner
from backend_caps.runtime.step import TargetRunner, states_of
from tests.runtime.graphs.rig import BUCKETS, DRAFTS, MAX_CONTEXT_LEN, Rig
from tests.runtime.two_batches import World

UNIFORM = BatchKind.UNIFORM_BATCH
MASK_SIZE = BUCKETS[UNIFORM][-1].batch_size * DRAFTS * MAX_CONTEXT_LEN


def _captured(rig: Rig) -> TargetRunner:
    """Capture a rig's model, and run verifies by its graphs."""
    runner = GraphRunner(
        lambda contexts: states_of(rig.model, *contexts),
        rig.places,
        rig.place,
        buckets=BUCKETS[UNIFORM],
        host_seq_lens=HostSeqLens.NONE,
        shared_reads_end=SharedReadsEnd.POST_REPLAY,
    )
    with rig.streams.using(rig.stream):
        world = World(rig.streams.device)
    return TargetRunner(rig.model, world.backends(), {Phase.VERIFY: runner})


@pytest.mark.parametrize(
    ("phase", "batch_size", "expected"),
    [
        pytest.param(Phase.VERIFY, 4, MASK_SIZE, id="what a graph holds"),
        pytest.param(Phase.VERIFY, 5, None, id="more than a graph holds"),
        pytest.param(Phase.DECODE, 1, None, id="a phase without graphs"),
    ],
)
def test_memory_for_masks_is_that_of_the_phase(
    phase: Phase, batch_size: int, expected: int | None, streams: DeviceStreams
) -> None:
    """Where a graph will read the mask, it is made in the graph's memory."""
    target = _captured(Rig(streams, BUCKETS[UNIFORM], mask_size=MASK_SIZE))

    (buffer,) = target.mask_buffers(phase, batch_size)

    assert (None if buffer is None else buffer.numel()) == expected
