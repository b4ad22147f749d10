"""Both FutureMaps in one overlapped loop on the simulated device, SGLang's in its CUDA branch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from backend_caps import HostSeqLens
from backend_caps.relay import DeviceStreams
from backend_caps.simulator import Schedule, Waited, WaitKind, simulate
from benchmarks.speculation import MakeRelay, SglangRelay, SpeculativeLoop, gather_in_one_launch
from benchmarks.waits import HIDDEN, Row, bare, measured, ours, sglang
from tests.simulator.orders import in_every_order
from tests.upstream.sglang_wheel import gather_by_index

pytestmark = pytest.mark.upstream

Side = Callable[[int, HostSeqLens], MakeRelay]
SIDES = pytest.mark.parametrize(
    "side", [pytest.param(ours, id="ours"), pytest.param(sglang, id="sglang")]
)
BATCH, SMALL, LARGE = 32, 256, 65536
# The default stream, the loop's three, and the one that lengths come by.
NUM_STREAMS, PRIVATE = 5, 4


def _row(host_seq_lens: HostSeqLens, pool_size: int = SMALL) -> Row:
    return measured(pool_size, BATCH, host_seq_lens)


@SIDES
@in_every_order(NUM_STREAMS)
def test_loop_gives_the_same_tokens_in_every_order(schedule: Schedule, side: Side) -> None:
    """Either relay, in any order of the device, gives what the loop gives without one."""
    with simulate(schedule, check_races=True) as simulation:
        loop = SpeculativeLoop("sim", side(SMALL, HostSeqLens.EXACT), BATCH, hidden=HIDDEN)
        for _ in range(10):
            loop.step()
        results = loop.results

    assert results == bare(BATCH).results
    assert simulation.races == ()


def test_sglang_takes_its_cuda_branch() -> None:
    """Beside a real relay stands one with a pinned column and a private stream."""
    with simulate():
        relay = SglangRelay(
            DeviceStreams("sim"),
            needs_cpu_seq_lens=True,
            pool_size=SMALL,
            gather=gather_in_one_launch,
        )

        assert relay.copy_stream is not None


@pytest.mark.parametrize("host_seq_lens", [HostSeqLens.NONE, HostSeqLens.UPPER_BOUND])
def test_opted_out_relay_neither_waits_nor_copies(host_seq_lens: HostSeqLens) -> None:
    """Without an exact mirror a step waits for nothing, and brings nothing to the host."""
    counts = _row(host_seq_lens).ours

    assert counts.waits == {}
    assert (counts.num_copies_to_host, counts.num_copies_to_device) == (0, 0)


@pytest.mark.parametrize("pool_size", [SMALL, LARGE])
def test_exact_mirror_waits_once_for_the_private_stream(pool_size: int) -> None:
    """With an exact mirror either side waits once, for its private stream, and copies once."""
    row = _row(HostSeqLens.EXACT, pool_size)

    expected = ({Waited(WaitKind.STREAM, PRIVATE): 1}, 1)
    assert (row.ours.waits, row.ours.num_copies_to_host) == expected
    assert (row.sglang.waits, row.sglang.num_copies_to_host) == expected


@pytest.mark.parametrize(
    ("pool_size", "crossed"),
    [
        pytest.param(SMALL, (SMALL * 8, SMALL * 8), id="small pool"),
        pytest.param(LARGE, (BATCH * 8, LARGE * 8), id="large pool"),
    ],
)
def test_exact_mirror_of_a_large_pool_brings_the_batch_alone(
    pool_size: int, crossed: tuple[int, int]
) -> None:
    """SGLang brings the pool's whole column; ours does while that is the cheaper way."""
    row = _row(HostSeqLens.EXACT, pool_size)

    assert (row.ours.bytes_to_host, row.sglang.bytes_to_host) == crossed


def test_gather_in_one_launch_is_the_gather() -> None:
    """What stands in for the Triton kernel gathers the same, and is one launch."""
    tables = (torch.rand(5, 2), torch.arange(10).view(5, 2), torch.arange(5), torch.rand(5, 3))
    rows = torch.tensor([4, 0, 4])
    with simulate() as simulation:
        on_device = [table.to("sim") for table in (rows, *tables)]
        before = simulation.counts.num_ops
        found = gather_in_one_launch(*on_device)
        num_launched = simulation.counts.num_ops - before
        gathered = [tensor.tolist() for tensor in found if tensor is not None]

    expected = [tensor.tolist() for tensor in gather_by_index(rows, *tables) if tensor is not None]
    assert (gathered, num_launched) == (expected, 1)
