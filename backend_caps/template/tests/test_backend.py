"""What the backend does beyond what it declares: dtypes, other value sizes, empty batches.

What it declares is held to be true by the checks of backend-caps, which `pytest` runs too:
pyproject.toml names the backend for them. In a scene everything that no request owns is NaN, so
that a read too many shows, and a batch brings every host length.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from backend_caps.kit.scenes import (
    DECODE,
    PREFILL,
    PREFIXED,
    VERIFY,
    Requests,
    Setting,
    layer_of,
    reference_attention,
    scene,
)
from torch import Tensor

from my_attention import MyAttentionBackend

TOLERANCES = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}
every_batch = pytest.mark.parametrize(
    ("requests", "uniform"),
    [
        pytest.param(PREFILL, False, id="prefill"),
        pytest.param(PREFIXED, False, id="prefill over a prefix"),
        pytest.param((*DECODE, *PREFIXED), False, id="mixed"),
        pytest.param(DECODE, True, id="decode"),
        pytest.param(VERIFY, True, id="verify"),
    ],
)


@every_batch
def test_values_may_be_wider_than_keys(requests: Requests, *, uniform: bool) -> None:
    """Whatever the size of a value is, the output is that of the reference."""
    setting = Setting(layer=layer_of(head_size=8, value_size=12))
    batch = scene(requests, uniform=uniform, setting=setting)

    output = batch.run(MyAttentionBackend)

    assert_close(output, reference_attention(batch))


@every_batch
@pytest.mark.parametrize("dtype", TOLERANCES)
def test_attention_keeps_the_dtype(
    requests: Requests, dtype: torch.dtype, *, uniform: bool
) -> None:
    """The output has the queries' dtype, and is as near to the reference as that dtype allows."""
    batch = scene(requests, uniform=uniform, setting=Setting(dtype=dtype))

    output = batch.run(MyAttentionBackend)

    assert output.dtype == dtype
    assert_close(output, reference_attention(batch))


@every_batch
def test_attention_reads_a_cache_of_another_dtype(requests: Requests, *, uniform: bool) -> None:
    """A 16-bit cache serves a float32 model, within the cache's precision."""
    batch = scene(requests, uniform=uniform, setting=Setting(cache_dtype=torch.bfloat16))

    output = batch.run(MyAttentionBackend)

    assert output.dtype == torch.float32
    assert_close(output, reference_attention(batch), precision=torch.bfloat16)


def test_empty_batch_has_no_output() -> None:
    """A batch without requests, as an idle rank has it, runs."""
    idle = scene(DECODE, uniform=True).select([])

    output = idle.run(MyAttentionBackend)

    assert len(output) == 0


def test_metadata_serves_every_layer() -> None:
    """One preparation serves all layers, and keys that are stored need not be stored again."""
    batch = scene(PREFIXED)
    backend = MyAttentionBackend(batch.pools)
    backend.init_forward_metadata(batch.batch)

    first = batch.forward(backend)
    second = replace(batch, k=batch.k + 1, v=batch.v + 1).forward(backend, save_kv_cache=False)

    assert torch.equal(first, second)


def assert_close(output: Tensor, expected: Tensor, precision: torch.dtype | None = None) -> None:
    """Compare with the reference, as closely as the output's dtype allows, or another."""
    tolerance = TOLERANCES[precision or output.dtype]
    torch.testing.assert_close(output.double(), expected, atol=tolerance, rtol=tolerance)
