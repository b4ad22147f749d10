from __future__ import annotations

import pytest
import torch
from backend_caps_torch_native import TorchNative, TorchPadded
from backend_caps_torch_native.paged import PagedAttention
from hypothesis import given, settings
from hypothesis import strategies as st

from backend_caps.conformance.scenes import (
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
from backend_caps.runtime.layer import AttentionLayer

pytestmark = pytest.mark.parametrize("kind", [TorchNative, TorchPadded])

HEADS = [
    pytest.param(layer_of(num_query_heads=2, num_kv_heads=2), id="MHA"),
    pytest.param(layer_of(num_query_heads=6, num_kv_heads=2), id="GQA"),
    pytest.param(layer_of(num_query_heads=4, num_kv_heads=1), id="MQA"),
    pytest.param(layer_of(head_size=8, value_size=12), id="wider values"),
]
BATCHES = [
    pytest.param(PREFILL, False, id="prefill"),
    pytest.param(PREFIXED, False, id="prefill over a prefix"),
    pytest.param(DECODE, True, id="decode"),
    pytest.param(VERIFY, True, id="verify"),
    pytest.param((*DECODE, *PREFIXED), False, id="mixed"),
]


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize(("requests", "uniform"), BATCHES)
def test_attention_equals_its_definition(
    kind: type[PagedAttention],
    requests: Requests,
    heads: AttentionLayer,
    page_size: int,
    *,
    uniform: bool,
) -> None:
    """Every batch, head layout and page layout gives the attention that float64 loops give."""
    batch = scene(requests, uniform=uniform, setting=Setting(layer=heads, page_size=page_size))

    output = batch.run(kind)

    torch.testing.assert_close(output.double(), reference_attention(batch), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [
        pytest.param(torch.bfloat16, 2e-2, id="bfloat16"),
        pytest.param(torch.float16, 2e-3, id="float16"),
    ],
)
@pytest.mark.parametrize(("requests", "uniform"), BATCHES)
def test_attention_in_half_precision_is_near_its_definition(
    kind: type[PagedAttention],
    requests: Requests,
    dtype: torch.dtype,
    tolerance: float,
    *,
    uniform: bool,
) -> None:
    """In 16 bits the output keeps its dtype, and is as near as that dtype allows."""
    batch = scene(requests, uniform=uniform, setting=Setting(dtype=dtype))

    output = batch.run(kind)

    assert output.dtype == dtype
    torch.testing.assert_close(
        output.double(), reference_attention(batch), atol=tolerance, rtol=tolerance
    )


def test_attention_reads_a_cache_of_another_dtype(kind: type[PagedAttention]) -> None:
    """A 16-bit cache serves a float32 model, within the cache's precision."""
    batch = scene(PREFIXED, setting=Setting(cache_dtype=torch.bfloat16))

    output = batch.run(kind)

    assert output.dtype == torch.float32
    torch.testing.assert_close(output.double(), reference_attention(batch), atol=2e-2, rtol=2e-2)


@settings(deadline=None, max_examples=60, database=None)
@given(
    requests=st.lists(st.tuples(st.integers(0, 16), st.integers(1, 6)), min_size=1, max_size=6),
    heads=st.sampled_from([layer_of(), layer_of(num_query_heads=3, num_kv_heads=3)]),
    page_size=st.sampled_from([1, 4, 16]),
    seed=st.integers(0, 2**16),
)
def test_attention_equals_its_definition_for_any_requests(
    kind: type[PagedAttention], requests: Requests, heads: AttentionLayer, page_size: int, seed: int
) -> None:
    """Whatever the prefixes, the new tokens and their places, the definition holds."""
    batch = scene(requests, setting=Setting(layer=heads, page_size=page_size, seed=seed))

    output = batch.run(kind)

    torch.testing.assert_close(output.double(), reference_attention(batch), atol=1e-5, rtol=1e-5)


@settings(deadline=None, max_examples=40, database=None)
@given(
    prefixes=st.lists(st.integers(0, 16), min_size=1, max_size=6),
    count=st.integers(1, 6),
    seed=st.integers(0, 2**16),
)
def test_attention_of_uniform_batches_needs_no_extend_lengths(
    kind: type[PagedAttention], prefixes: list[int], count: int, seed: int
) -> None:
    """A batch that says nothing of its new tokens has the same number for every request."""
    requests = [(prefix, count) for prefix in prefixes]
    batch = scene(requests, uniform=True, setting=Setting(seed=seed))

    output = batch.run(kind)

    torch.testing.assert_close(output.double(), reference_attention(batch), atol=1e-5, rtol=1e-5)
