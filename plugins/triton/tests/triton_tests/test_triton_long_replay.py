"""Hundreds of replays of one capture; the kit's cases have a few each."""

from __future__ import annotations

import pytest
import torch
from backend_caps_triton import TritonAttention

from backend_caps.simulator import simulate

from .graphs import DECODE, NUM_REQUESTS, TREES, VERIFY, Captured, drawn

pytestmark = pytest.mark.slow

NUM_REPLAYS = 500


@pytest.mark.parametrize(
    "num_replays",
    [2, pytest.param(NUM_REPLAYS, marks=[pytest.mark.soak, pytest.mark.timeout(7200)])],
)
@pytest.mark.parametrize(
    "num_tokens",
    [
        pytest.param(DECODE, id="decode"),
        pytest.param(VERIFY, id="verify"),
        pytest.param(TREES, id="trees"),
    ],
)
def test_replays_of_one_capture_are_eager_ones(num_tokens: int, num_replays: int) -> None:
    """Lengths, page tables and contents change in every step, and outputs are the eager ones."""
    batches = [drawn(num_tokens, seed) for seed in range(num_replays)]

    with simulate("eager"):
        whole = drawn(num_tokens, seed=10_000, num_requests=NUM_REQUESTS)
        captured = Captured(TritonAttention, whole.on("sim"))
        replayed = [captured.replayed(batch).cpu() for batch in batches]
        eager = [batch.on("sim").run(TritonAttention).cpu() for batch in batches]

    torch.testing.assert_close(replayed, eager, atol=1e-6, rtol=1e-6)
