from __future__ import annotations

import pytest
import torch
from backend_caps_triton import TritonAttention

from backend_caps.kit.scenes import (
    DECODE,
    PREFILL,
    PREFIXED,
    VERIFY,
    Requests,
    Setting,
    reference_attention,
    scene,
)
from backend_caps.runtime.model.layers import AttentionLayer

from .grid import Case, cases

pytestmark = pytest.mark.slow

BATCHES = [
    pytest.param(PREFILL, False, id="prefill"),
    pytest.param(PREFIXED, False, id="prefill over a prefix"),
    pytest.param(DECODE, True, id="decode"),
    pytest.param(VERIFY, True, id="verify"),
    pytest.param((*DECODE, *PREFIXED), False, id="mixed"),
]


@pytest.mark.parametrize("case", list(cases()))
def test_attention_equals_its_definition(case: Case) -> None:
    """Over head layouts, head sizes, pages and lengths it is what float64 loops give."""
    batch = case.scene()

    output = batch.on(case.device).run(TritonAttention).cpu()

    torch.testing.assert_close(output.double(), reference_attention(batch), atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [
        pytest.param(torch.bfloat16, 2e-2, id="bfloat16"),
        pytest.param(torch.float16, 2e-3, id="float16"),
    ],
)
@pytest.mark.parametrize(("requests", "uniform"), BATCHES)
def test_attention_in_half_precision_is_near_its_definition(
    device: torch.device, requests: Requests, dtype: torch.dtype, tolerance: float, *, uniform: bool
) -> None:
    """In 16 bits the output keeps its dtype, and is as near as that dtype allows."""
    batch = scene(requests, uniform=uniform, setting=Setting(dtype=dtype))

    output = batch.on(device).run(TritonAttention).cpu()

    assert output.dtype == dtype
    torch.testing.assert_close(
        output.double(), reference_attention(batch), atol=tolerance, rtol=tolerance
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_attention_reads_a_cache_of_another_dtype(device: torch.device, dtype: torch.dtype) -> None:
    """A cache of bfloat16 serves a model of more bits, within the cache's precision."""
    batch = scene(PREFIXED, setting=Setting(dtype=dtype, cache_dtype=torch.bfloat16))

    output = batch.on(device).run(TritonAttention).cpu()

    assert output.dtype == dtype
    torch.testing.assert_close(output.double(), reference_attention(batch), atol=2e-2, rtol=2e-2)


def test_queries_may_lie_apart(device: torch.device) -> None:
    """Queries that are a part of a wider projection are read where they lie."""
    batch = scene(PREFIXED).on(device)
    backend = TritonAttention(batch.pools)
    backend.init_forward_metadata(batch.batch)
    wide = torch.cat([torch.full_like(batch.q, torch.nan), batch.q], dim=1).flatten(1)

    apart = wide[:, batch.q[0].numel() :]
    output = backend.forward(apart, batch.k, batch.v, batch.layer, batch.batch)

    assert torch.equal(output, batch.run(TritonAttention).flatten(1))


def _roomy(layer: AttentionLayer, page_size: int, seed: int) -> Setting:
    """Make room for contexts that are cut into chunks."""
    return Setting(layer=layer, page_size=page_size, seed=seed, max_context_len=128, num_slots=1024)
