"""What the eager path computes: the masks and layouts that kernels are given too."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from backend_caps.conformance.scenes import (
    DECODE,
    PREFILL,
    PREFIXED,
    VERIFY,
    Requests,
    Scene,
    Setting,
    layer_of,
    reference_attention,
    scene,
)
from backend_caps.runtime.layer import AttentionLayer

from .rig import EAGER, bounded

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
SERVED = [
    pytest.param(layer_of(1, 1, 64), id="1 head of 64"),
    pytest.param(layer_of(8, 8, 80), id="8 of 80"),
    pytest.param(layer_of(16, 4, 96), id="16 over 4 of 96"),
    pytest.param(layer_of(64, 8, 128), id="64 over 8 of 128"),
    pytest.param(layer_of(8, 1, 256), id="8 over 1 of 256"),
]
LONG = [
    pytest.param(((2045, 3), (0, 1), (1023, 1), (100, 28)), False, id="mixed"),
    pytest.param(((4095, 1), (0, 1), (127, 1), (128, 1)), True, id="decode"),
    pytest.param(((2040, 8), (0, 8), (120, 8), (121, 8)), True, id="verify"),
]


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize(("requests", "uniform"), BATCHES)
def test_attention_equals_its_definition(
    requests: Requests, heads: AttentionLayer, page_size: int, *, uniform: bool
) -> None:
    """Every batch, head layout and page layout gives the attention that float64 loops give."""
    batch = scene(requests, uniform=uniform, setting=Setting(layer=heads, page_size=page_size))

    output = bounded(batch).run(EAGER)

    torch.testing.assert_close(output.double(), reference_attention(batch), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("page_size", [1, 64])
@pytest.mark.parametrize("heads", SERVED)
@pytest.mark.parametrize(("requests", "uniform"), LONG)
def test_attention_equals_its_definition_over_long_contexts(
    requests: Requests, heads: AttentionLayer, page_size: int, *, uniform: bool
) -> None:
    """So do the heads that models have, over contexts that end before, at and behind a block."""
    batch = _long(requests, heads, page_size, uniform=uniform)

    output = bounded(batch).run(EAGER)

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
    requests: Requests, dtype: torch.dtype, tolerance: float, *, uniform: bool
) -> None:
    """In 16 bits the output keeps its dtype, and is as near as that dtype allows."""
    batch = scene(requests, uniform=uniform, setting=Setting(dtype=dtype))

    output = bounded(batch).run(EAGER)

    assert output.dtype == dtype
    torch.testing.assert_close(
        output.double(), reference_attention(batch), atol=tolerance, rtol=tolerance
    )


def test_attention_reads_a_cache_of_another_dtype() -> None:
    """A 16-bit cache serves a float32 model, within the cache's precision."""
    batch = scene(PREFIXED, setting=Setting(cache_dtype=torch.bfloat16))

    output = bounded(batch).run(EAGER)

    assert output.dtype == torch.float32
    torch.testing.assert_close(output.double(), reference_attention(batch), atol=2e-2, rtol=2e-2)


@settings(deadline=None, max_examples=60, database=None)
@given(
    requests=st.lists(st.tuples(st.integers(0, 300), st.integers(1, 140)), min_size=1, max_size=6),
    heads=st.sampled_from([layer_of(), layer_of(num_query_heads=3, num_kv_heads=3)]),
    page_size=st.sampled_from([1, 16, 64]),
    slack=st.integers(0, 200),
    seed=st.integers(0, 2**16),
)
def test_attention_equals_its_definition_for_any_requests(
    requests: Requests, heads: AttentionLayer, page_size: int, slack: int, seed: int
) -> None:
    """Whatever prefixes, new tokens, their places and bounds are, the definition holds."""
    setting = Setting(
        layer=heads, page_size=page_size, seed=seed, max_context_len=440, num_slots=3072
    )
    batch = scene(requests, setting=setting)

    output = bounded(batch, slack=slack).run(EAGER)

    torch.testing.assert_close(output.double(), reference_attention(batch), atol=1e-5, rtol=1e-5)


@settings(deadline=None, max_examples=40, database=None)
@given(
    prefixes=st.lists(st.integers(0, 500), min_size=1, max_size=6),
    count=st.one_of(st.integers(1, 8), st.integers(120, 140)),
    seed=st.integers(0, 2**16),
)
def test_attention_equals_its_definition_for_any_uniform_batch(
    prefixes: list[int], count: int, seed: int
) -> None:
    """However many tokens all requests bring, more than a block too, the definition holds."""
    setting = Setting(seed=seed, max_context_len=640, num_slots=4096)
    batch = scene([(prefix, count) for prefix in prefixes], uniform=True, setting=setting)

    output = bounded(batch).run(EAGER)

    torch.testing.assert_close(output.double(), reference_attention(batch), atol=1e-5, rtol=1e-5)


def test_requests_may_share_a_prefix() -> None:
    """Two requests whose page tables name the same slots attend to them alike."""
    batch = scene(((9, 1), (9, 1)), uniform=True)
    first, second = batch.batch.req_pool_indices
    batch.pools.req_to_token[second, :9] = batch.pools.req_to_token[first, :9]
    batch.q[1], batch.k[1], batch.v[1] = batch.q[0], batch.k[0], batch.v[0]

    output = bounded(batch).run(EAGER)

    torch.testing.assert_close(output[1], output[0], atol=1e-6, rtol=1e-6)


def _long(requests: Requests, heads: AttentionLayer, page_size: int, *, uniform: bool) -> Scene:
    setting = Setting(layer=heads, page_size=page_size, max_context_len=4100, num_slots=6400)
    return scene(requests, uniform=uniform, setting=setting)
