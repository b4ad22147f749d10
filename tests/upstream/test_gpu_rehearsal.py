"""The GPU benchmark's comparison of relays, rehearsed on the simulated device."""

from __future__ import annotations

from dataclasses import replace

import pytest

from backend_caps import HostSeqLens
from benchmarks.gpu import Timing, mirrors, opened
from benchmarks.waits import measured

pytestmark = pytest.mark.upstream

SIDES = ["sglang exact", "sglang none", "none", "upper_bound", "exact"]


@pytest.fixture(scope="module")
def timings() -> list[Timing]:
    """Rehearse one batch size on both pools."""
    with opened("sim") as (device, scale, gather):
        return mirrors(device, 10, replace(scale, batches=(3,)), gather)


def test_rehearsal_has_every_side_of_every_pool(timings: list[Timing]) -> None:
    """Both of SGLang's modes and our three stand side by side, on a small pool and a large one."""
    sides = [(own.comparison, own.side) for own in timings]

    assert sides == [(f"mirror {pool}", side) for pool in (4096, 65536) for side in SIDES]


def test_rehearsal_times_lengths_where_they_come_to_the_host(timings: list[Timing]) -> None:
    """The time from publish to host lengths is there where a side has an exact mirror."""
    timed = {own.side for own in timings if own.lengths_us is not None}

    assert timed == {"sglang exact", "exact"}
    assert all(own.lengths_us is None or own.lengths_us > 0 for own in timings)


@pytest.mark.parametrize("host_seq_lens", HostSeqLens)
def test_rehearsal_counts_what_the_counts_are(
    timings: list[Timing], host_seq_lens: HostSeqLens
) -> None:
    """Kernels and copies of our relay are those that the simulated device counts for a step."""
    found = [own for own in timings if own.side == host_seq_lens.value]

    for timing, pool_size in zip(found, (4096, 65536), strict=True):
        counts = measured(pool_size, 3, host_seq_lens).ours
        copies = counts.num_copies_to_host + counts.num_copies_to_device
        assert (timing.relay_kernels, timing.relay_copies) == (counts.num_ops - copies, copies)
