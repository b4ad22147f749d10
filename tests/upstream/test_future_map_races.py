"""Both FutureMaps in one overlapped loop on the simulated device, SGLang's in its CUDA branch."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from backend_caps import HostSeqLens
from backend_caps.relay import DeviceStreams, RelayPayload
from backend_caps.relay.streams import StreamLike
from backend_caps.simulator import Schedule, Waited, WaitKind, simulate
from benchmarks.speculation import (
    LoopBatch,
    MakeRelay,
    SglangRelay,
    SpeculativeLoop,
    gather_in_one_launch,
)
from benchmarks.waits import HIDDEN, Row, bare, measured, ours, sglang
from tests.simulator.orders import in_every_order
from tests.upstream.sglang_wheel import gather_by_index, load_overlap_utils

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


def test_sglang_takes_the_branch_of_gpus() -> None:
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


BATCH, POOL, STEPS = 32, 256, 5
# The default stream, the loop's three, and the one that lengths come by.
NUM_STREAMS = 5
_EAGLE = SimpleNamespace(
    is_none=lambda: False, is_some=lambda: True, is_ngram=lambda: False, need_topk=lambda: True
)


class NewestRelay:
    """SGLang 0.5.23's map, which takes its device for CUDA.

    Args:
        streams: of the device.
        mirrors: whether lengths come to the host.
    """

    def __init__(self, streams: DeviceStreams, *, mirrors: bool) -> None:
        self._module = load_overlap_utils("0.5.23", gather=gather_by_index, is_cuda=True)
        # Of another algorithm's; its base class is no part of the stubs.
        self._module.__dict__["ConfidenceRelay"] = SimpleNamespace
        pool = SimpleNamespace(req_to_token=torch.empty(POOL, 1))
        self._map = self._module.FutureMap(streams.device, _EAGLE, pool, mirrors)
        stream: StreamLike = self._map.fwd_prepare_d2h_stream
        self.copy_stream = stream if mirrors else None

    def resolve_lengths(self, batch: LoopBatch) -> None:
        """Give the batch its lengths, and its mirror where backends need one."""
        self._map.resolve_seq_lens_cpu(batch)

    def resolve_inputs(self, batch: LoopBatch) -> None:
        """Give the batch its draft state, by the fields that this version asks for."""
        state = SimpleNamespace(
            future_indices=batch.spec_info.future_indices, future_dsa_topk_indices_available=False
        )
        seen = SimpleNamespace(
            prefill_input_ids_cpu=None,
            input_ids=None,
            enable_overlap=True,
            spec_algorithm=_EAGLE,
            spec_info=state,
        )
        self._module.resolve_forward_inputs(seen, self._map)
        batch.spec_info.topk_p, batch.spec_info.topk_index = state.topk_p, state.topk_index
        batch.spec_info.bonus_tokens = state.bonus_tokens
        batch.spec_info.hidden_states = state.hidden_states

    def publish(self, rows: Tensor, seq_lens: Tensor) -> None:
        """Store lengths, and record the event behind them."""
        self._map.publish(rows, seq_lens)

    def stash(self, rows: Tensor, payload: RelayPayload) -> None:
        """Store what the next step starts from."""
        theirs = self._module.RelayPayload(
            bonus_tokens=payload.bonus_tokens,
            topk_p=payload.topk_p,
            topk_index=payload.topk_index,
            hidden_states=payload.hidden_states,
        )
        self._map.stash(rows, theirs)

    def commit(self, rows_cpu: Tensor, lens_cpu: Tensor) -> None:
        """Need nothing of it: SGLang has no bounds."""


class HastyRelay(NewestRelay):
    """The same, whose schedule stream does not wait for what was published."""

    def resolve_lengths(self, batch: LoopBatch) -> None:
        """Give the batch its lengths at once."""
        published, self._map.publish_ready = self._map.publish_ready, None
        super().resolve_lengths(batch)
        self._map.publish_ready = published


@in_every_order(NUM_STREAMS)
@pytest.mark.parametrize("mirrors", [True, False], ids=["mirror", "none"])
def test_newest_map_has_no_race_in_any_order(schedule: Schedule, mirrors: bool) -> None:
    """SGLang 0.5.23's map gives the loop's own tokens in any order, and nothing of it races."""
    with simulate(schedule, check_races=True) as simulation:
        loop = SpeculativeLoop(
            "sim", lambda streams: NewestRelay(streams, mirrors=mirrors), BATCH, hidden=HIDDEN
        )
        for _ in range(STEPS):
            loop.step()
        results = loop.results

    assert results == bare(BATCH).results[: STEPS - 1]  # one step is still under way
    assert simulation.races == ()


def test_check_sees_a_map_that_does_not_wait() -> None:
    """Without its wait for what was published, the same map is found to race."""
    with simulate(check_races=True) as simulation:
        loop = SpeculativeLoop(
            "sim", lambda streams: HastyRelay(streams, mirrors=False), BATCH, hidden=HIDDEN
        )
        for _ in range(STEPS):
            loop.step()

    assert any("overlap_utils.py" in own.second.site.file for own in simulation.races)
