"""Replays of CUDA's own graphs; the kit replays on the simulated device."""

from __future__ import annotations

import pytest
import torch
from backend_caps_triton import TritonAttention
from backend_caps_triton.work import Cutting

from backend_caps.kit.scenes import reference_attention

from .graphs import DECODE, NUM_REQUESTS, TREES, VERIFY, Captured, drawn

pytestmark = pytest.mark.slow

NUM_REPLAYS = 500
every_kind = pytest.mark.parametrize(
    "num_tokens",
    [
        pytest.param(DECODE, id="decode"),
        pytest.param(VERIFY, id="verify"),
        pytest.param(TREES, id="trees"),
    ],
)


@pytest.fixture(autouse=True)
def _cuda_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip where there are no such graphs; split the short contexts of these tests too."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device: its own graphs are not to be had")
    monkeypatch.setattr(Cutting, "for_device", lambda *_: Cutting(num_shares=5, min_chunk=16))


@every_kind
def test_replays_on_cuda_equal_eager_forwards(num_tokens: int) -> None:
    """One capture serves batches of other lengths, sizes, page tables and contents."""
    batches = [drawn(num_tokens, seed) for seed in range(NUM_REPLAYS)]
    captured = _captured(num_tokens)

    replayed = [captured.replayed(batch).cpu() for batch in batches]

    eager = [batch.on("cuda").run(TritonAttention).cpu() for batch in batches]
    torch.testing.assert_close(replayed, eager, atol=1e-6, rtol=1e-6)


@every_kind
def test_graphs_on_cuda_read_nothing_that_the_scheduler_writes(num_tokens: int) -> None:
    """Once the plan is made, the page table may be overwritten: the replay does not see it."""
    batch = drawn(num_tokens, seed=1, num_requests=NUM_REQUESTS)
    captured = _captured(num_tokens)

    captured.load(batch.on("cuda"))
    captured.plan()
    captured.static.pools.req_to_token.fill_(0)
    captured.replay()

    found = captured.output.cpu().double()
    torch.testing.assert_close(found, reference_attention(batch), atol=1e-5, rtol=1e-5)


def _captured(num_tokens: int) -> Captured:
    """Capture as many requests as there may be."""
    whole = drawn(num_tokens, seed=10_000, num_requests=NUM_REQUESTS)
    return Captured(TritonAttention, whole.on("cuda"))
