"""Sizes that the kit does not draw, on the eager path; it holds the others."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from backend_caps.kit.scenes import (
    DECODE,
    PREFIXED,
    Requests,
    Setting,
    layer_of,
    reference_attention,
    scene,
)

from .rig import EAGER, bounded


@pytest.mark.parametrize(
    ("requests", "uniform"),
    [pytest.param(PREFIXED, False, id="prefill"), pytest.param(DECODE, True, id="decode")],
)
def test_values_may_be_wider_than_keys(requests: Requests, *, uniform: bool) -> None:
    """Values of another size than keys give the attention that float64 loops give."""
    wider = Setting(layer=layer_of(head_size=8, value_size=12))
    batch = scene(requests, uniform=uniform, setting=wider)

    output = bounded(batch).run(EAGER)

    torch.testing.assert_close(output.double(), reference_attention(batch), atol=1e-5, rtol=1e-5)


def test_attention_reads_a_cache_of_another_dtype() -> None:
    """A 16-bit cache serves a float32 model, within the cache's precision."""
    batch = scene(PREFIXED, setting=Setting(cache_dtype=torch.bfloat16))

    output = bounded(batch).run(EAGER)

    assert output.dtype == torch.float32
    torch.testing.assert_close(output.double(), reference_attention(batch), atol=2e-2, rtol=2e-2)


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
