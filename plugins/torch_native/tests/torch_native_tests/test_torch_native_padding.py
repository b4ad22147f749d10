from __future__ import annotations

import pytest
import torch
from backend_caps_torch_native import TorchNative, TorchPadded
from backend_caps_torch_native.paged import PagedAttention

from backend_caps.conformance.scenes import (
    DECODE,
    PREFIXED,
    VERIFY,
    Requests,
    Scene,
    Setting,
    padded,
    scene,
)

both_backends = pytest.mark.parametrize("kind", [TorchNative, TorchPadded])
every_batch = pytest.mark.parametrize(
    ("requests", "uniform"),
    [
        pytest.param(PREFIXED, False, id="prefill"),
        pytest.param(DECODE, True, id="decode"),
        pytest.param(VERIFY, True, id="verify"),
    ],
)


@both_backends
@every_batch
@pytest.mark.parametrize("poison", [torch.nan, torch.inf, 1e30])
@pytest.mark.parametrize("stale_slot", [0, Setting().num_slots - 1, 2**30, -(2**30)])
def test_output_is_independent_of_what_nobody_owns(
    kind: type[PagedAttention], requests: Requests, poison: float, stale_slot: int, *, uniform: bool
) -> None:
    """Unowned cache slots and stale page-table entries, out of range even, change no bit."""
    clean = scene(requests, uniform=uniform, setting=Setting(poison=0.0))
    poisoned = Setting(poison=poison, stale_slot=stale_slot)

    output = scene(requests, uniform=uniform, setting=poisoned).run(kind)

    assert torch.equal(output, clean.run(kind))


@both_backends
@every_batch
def test_padding_leaves_the_real_requests_as_they_are(
    kind: type[PagedAttention], requests: Requests, *, uniform: bool
) -> None:
    """Rows of pool row 0 whose tokens are poison change nothing for the others."""
    real = scene(requests, uniform=uniform)

    output = _with_padding(real).run(kind)

    alone = real.run(kind)
    torch.testing.assert_close(output[: len(real.q)], alone, atol=1e-6, rtol=1e-6)


@every_batch
def test_torch_padded_gives_zeros_for_padding(requests: Requests, *, uniform: bool) -> None:
    """A padded token's output is zero, though nothing of it is a number or a slot."""
    real = scene(requests, uniform=uniform, setting=Setting(stale_slot=2**30))

    output = _with_padding(real).run(TorchPadded)

    assert torch.equal(output[len(real.q) :], torch.zeros_like(real.q))


@both_backends
def test_tokens_after_the_last_request_see_nothing(kind: type[PagedAttention]) -> None:
    """Tokens beyond the sum of the extend lengths, which no request owns, get zeros."""
    real = scene(PREFIXED)

    output = padded(real, rows=0, tokens=2).run(kind)

    assert torch.equal(output[-2:], torch.zeros_like(real.q[:2]))


@pytest.mark.parametrize("length", [0, 1])
def test_torch_native_gives_numbers_for_padding(length: int) -> None:
    """A padded request of length 0 or 1 that brings several tokens gives finite rows."""
    real = scene(VERIFY, uniform=True, setting=Setting(poison=0.0))
    assert real.batch.seq_lens_cpu is not None
    real.batch.req_pool_indices[1] = 0
    real.batch.seq_lens_cpu[1] = length

    output = real.run(TorchNative)

    assert output.isfinite().all()


def _with_padding(real: Scene) -> Scene:
    """Add as many tokens as there are, in as many rows."""
    return padded(real, rows=len(real.counts), tokens=len(real.q))
