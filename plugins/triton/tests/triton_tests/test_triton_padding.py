from __future__ import annotations

import pytest
import torch
from backend_caps_triton import TritonAttention

from backend_caps.kit.scenes import (
    DECODE,
    PREFIXED,
    VERIFY,
    Requests,
    Scene,
    Setting,
    padded,
    reference_attention,
    scene,
)

pytestmark = pytest.mark.slow

every_batch = pytest.mark.parametrize(
    ("requests", "uniform"),
    [
        pytest.param(PREFIXED, False, id="prefill"),
        pytest.param(DECODE, True, id="decode"),
        pytest.param(VERIFY, True, id="verify"),
    ],
)
NOWHERE = 2**30


@every_batch
def test_page_table_entries_behind_a_context_may_be_no_slots(
    device: torch.device, requests: Requests, *, uniform: bool
) -> None:
    """Nothing is looked up there, whether or not it would be masked."""
    clean = scene(requests, uniform=uniform, setting=Setting(poison=0.0))
    poisoned = Setting(stale_slot=NOWHERE)

    output = scene(requests, uniform=uniform, setting=poisoned).on(device).run(TritonAttention)

    assert torch.equal(output, clean.on(device).run(TritonAttention))


@every_batch
def test_padding_gets_zeros(device: torch.device, requests: Requests, *, uniform: bool) -> None:
    """A padded token's output is zero, though nothing of it is a number or a slot."""
    real = scene(requests, uniform=uniform, setting=Setting(stale_slot=NOWHERE))

    output = _with_padding(real).on(device).run(TritonAttention).cpu()

    assert torch.equal(output[len(real.q) :], torch.zeros_like(real.q))


def test_tokens_after_the_last_request_get_zeros(device: torch.device) -> None:
    """Tokens beyond the sum of the extend lengths, which no request owns, get zeros."""
    real = scene(PREFIXED)

    output = padded(real, rows=0, tokens=2).on(device).run(TritonAttention).cpu()

    assert torch.equal(output[-2:], torch.zeros_like(real.q[:2]))


@pytest.mark.parametrize("length", [0, 1])
def test_padding_within_a_batch_gets_zeros(device: torch.device, length: int) -> None:
    """A padded request between others, of length 0 or 1, gets zeros for all of its tokens."""
    real = scene(VERIFY, uniform=True)
    real.batch.req_pool_indices[1] = 0
    real.batch.seq_lens[1] = length

    output = real.on(device).run(TritonAttention).cpu()

    assert torch.equal(output[3:6], torch.zeros_like(real.q[3:6]))


def test_requests_without_tokens_have_no_part(device: torch.device) -> None:
    """A request that brings nothing to a batch of prompts changes nothing for the others."""
    batch = scene(((7, 4), (5, 0), (3, 6)))

    output = batch.on(device).run(TritonAttention).cpu()

    torch.testing.assert_close(output.double(), reference_attention(batch), atol=1e-5, rtol=1e-5)


def _with_padding(real: Scene) -> Scene:
    """Add as many tokens as there are, in as many rows."""
    return padded(real, rows=len(real.counts), tokens=len(real.q))
