from __future__ import annotations

import pytest
import torch
from backend_caps_triton import TritonAttention
from triton_caps import TRITON

from backend_caps import BatchKind, GraphMetadata, HostSeqLens, SharedReadsEnd
from backend_caps.conformance.scenes import Scene, reference_attention
from backend_caps.conformance.simulator import CaptureError, simulate
from backend_caps.protocols import ForwardBatch

from .graphs import DECODE, NUM_REQUESTS, TREES, VERIFY, Captured, drawn, running_on

NUM_REPLAYS = 500
a_few_or_all = pytest.mark.parametrize(
    "num_interpreted",
    [
        6,
        pytest.param(NUM_REPLAYS, marks=[pytest.mark.soak, pytest.mark.timeout(7200)]),
    ],
)
every_kind = pytest.mark.parametrize(
    "num_tokens",
    [
        pytest.param(DECODE, id="decode"),
        pytest.param(VERIFY, id="verify"),
        pytest.param(TREES, id="trees"),
    ],
)


@pytest.fixture(params=["sim", "cuda"])
def graph_device(request: pytest.FixtureRequest) -> str:
    """Run a test on the simulated device, and on CUDA where there is one."""
    name: str = request.param
    if name == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device: its own graphs are not to be had")
    return name


@every_kind
@a_few_or_all
def test_replays_equal_eager_forwards(
    graph_device: str, num_tokens: int, num_interpreted: int
) -> None:
    """One capture serves batches of other lengths, sizes, page tables and contents."""
    num_replays = NUM_REPLAYS if graph_device == "cuda" else num_interpreted
    batches = [drawn(num_tokens, seed) for seed in range(num_replays)]

    with running_on(graph_device):
        captured = _captured(TritonAttention, num_tokens, graph_device)
        replayed = [captured.replayed(batch).cpu() for batch in batches]
        eager = [batch.on(graph_device).run(TritonAttention).cpu() for batch in batches]

    torch.testing.assert_close(replayed, eager, atol=1e-6, rtol=1e-6)


@every_kind
def test_captures_and_replays_make_the_host_wait_for_nothing(num_tokens: int) -> None:
    """Neither the plan nor the kernels bring a value to the host, and the result is right."""
    batch = drawn(num_tokens, seed=1, num_requests=NUM_REQUESTS)

    with simulate("lazy") as run:
        static, there = _whole(num_tokens).on("sim"), batch.on("sim")
        num_loading = len(run.hidden_syncs)
        captured = Captured(TritonAttention, static)
        captured.load(there)
        captured.plan()
        captured.replay()
        num_syncs = len(run.hidden_syncs) - num_loading
        found = captured.output.cpu()

    assert num_syncs == 0
    torch.testing.assert_close(found.double(), reference_attention(batch), atol=1e-5, rtol=1e-5)


@every_kind
def test_graphs_read_nothing_that_the_scheduler_writes(graph_device: str, num_tokens: int) -> None:
    """Once the plan is made, the page table may be overwritten: the replay does not see it."""
    batch = drawn(num_tokens, seed=1, num_requests=NUM_REQUESTS)

    with running_on(graph_device):
        captured = _captured(TritonAttention, num_tokens, graph_device)
        captured.load(batch.on(graph_device))
        captured.plan()
        captured.static.pools.req_to_token.fill_(0)
        captured.replay()
        found = captured.output.cpu()

    torch.testing.assert_close(found.double(), reference_attention(batch), atol=1e-5, rtol=1e-5)


def test_graphs_of_several_sizes_share_their_tables(graph_device: str) -> None:
    """Replays of a small graph and of a large one in turns give each its own."""
    small, large = drawn(DECODE, 3, num_requests=1), drawn(DECODE, 4, num_requests=3)

    with running_on(graph_device):
        captured = _captured(TritonAttention, DECODE, graph_device)
        found = [captured.replayed(batch).cpu() for batch in (large, small, large)]

    for output, batch in zip(found, (large, small, large), strict=True):
        expected = reference_attention(batch)
        torch.testing.assert_close(output.double(), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("max_bs", "max_num_tokens"), [(2, 9), (3, 2)])
def test_batches_larger_than_was_said_are_refused(max_bs: int, max_num_tokens: int) -> None:
    """More requests or tokens than tables were made for would be written behind their ends."""
    batch = drawn(VERIFY, seed=1, num_requests=NUM_REQUESTS)
    backend = TritonAttention(batch.pools)
    backend.init_cuda_graph_state(max_bs, max_num_tokens)

    with pytest.raises(AssertionError, match="3 requests, 9 tokens: more than was allocated for"):
        backend.init_forward_metadata_out_graph(batch.batch)


def test_what_is_declared_is_what_is_tried() -> None:
    """The declaration promises what the tests above hold."""
    declared = TRITON.capabilities

    assert declared.graph_replay == {BatchKind.SINGLE_TOKEN_DECODE, BatchKind.UNIFORM_BATCH}
    assert declared.graph_metadata is GraphMetadata.DEVICE
    assert declared.shared_reads_end is SharedReadsEnd.PRE_REPLAY
    assert declared.host_seq_lens is HostSeqLens.NONE


class PlansOnce(TritonAttention):
    """A mutant: its graphs keep the plan of their capture."""

    def init_forward_metadata_out_graph(self, batch: ForwardBatch) -> None:
        """Plan for the first batch alone."""
        if self._plans > 0:
            self._plans -= 1
            super().init_forward_metadata_out_graph(batch)

    _plans = 2


class BakesLengths(TritonAttention):
    """A mutant: it writes host lengths into the tables as the graph is captured."""

    def init_forward_metadata_in_graph(self, batch: ForwardBatch) -> None:
        """Fill in what the host knows now."""
        assert batch.seq_lens_cpu is not None
        for fields, length in zip(self._work.requests, batch.seq_lens_cpu.tolist(), strict=True):
            fields[0].fill_(length)


class ReadsTheLongest(TritonAttention):
    """A mutant: it asks the device for the longest context."""

    def init_forward_metadata_out_graph(self, batch: ForwardBatch) -> None:
        """Read it, and wait for it."""
        assert int(batch.seq_lens.max()) >= 0
        super().init_forward_metadata_out_graph(batch)


class ReadsTheLongestInGraph(TritonAttention):
    """A mutant: it asks for the longest context while a graph is captured."""

    def init_forward_metadata_in_graph(self, batch: ForwardBatch) -> None:
        """Read it, which a capture cannot."""
        assert int(batch.seq_lens.max()) >= 0


@pytest.mark.parametrize("mutant", [PlansOnce, BakesLengths])
def test_baked_host_values_are_caught(mutant: type[TritonAttention]) -> None:
    """A graph that keeps a value of its capture gives a wrong output for other lengths."""
    batch = drawn(DECODE, seed=1, num_requests=NUM_REQUESTS, poison=0.0)

    with simulate("eager"):
        found = _captured(mutant, DECODE, "sim").replayed(batch).cpu()

    expected = reference_attention(batch)
    assert not torch.allclose(found.double(), expected, atol=1e-3, rtol=1e-3)


def test_waits_for_a_length_are_caught() -> None:
    """A backend that asks the device for a length is seen waiting, though its output is right."""
    with simulate("eager") as run:
        captured = _captured(ReadsTheLongest, DECODE, "sim")
        num_before = len(run.hidden_syncs)
        captured.plan()
        num_syncs = len(run.hidden_syncs) - num_before

    assert num_syncs == 1


def test_waits_within_a_capture_are_caught() -> None:
    """A backend that asks for a length within a capture is refused there."""
    with pytest.raises(CaptureError), simulate("eager"):
        _captured(ReadsTheLongestInGraph, DECODE, "sim")


def _captured(make: type[TritonAttention], num_tokens: int, device: str) -> Captured:
    return Captured(make, _whole(num_tokens).on(device))


def _whole(num_tokens: int) -> Scene:
    """Make the batch that is captured: as many requests as there may be."""
    return drawn(num_tokens, seed=10_000, num_requests=NUM_REQUESTS)
