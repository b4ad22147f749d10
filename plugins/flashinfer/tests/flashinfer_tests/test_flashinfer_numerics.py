"""Sizes and masks that the kit does not draw, with wrappers that compute in plain PyTorch."""

from __future__ import annotations

import pytest
import torch
from backend_caps_flashinfer import CacheDtypeError, FlashInfer
from flashinfer_caps import FLASHINFER
from hypothesis import given, settings
from hypothesis import strategies as st

from backend_caps.kit.scenes import (
    DECODE,
    PREFIXED,
    VERIFY,
    Requests,
    Setting,
    beams,
    dice_of,
    layer_of,
    masked_scene,
    reference_attention,
    scene,
    with_mask,
)
from backend_caps.runtime.model.layers import AttentionLayer

pytestmark = pytest.mark.usefixtures("fake_flashinfer")

HEADS = [
    pytest.param(layer_of(num_query_heads=10, num_kv_heads=2), id="groups of five"),
    pytest.param(layer_of(head_size=8, value_size=12), id="wider values"),
]
BATCHES = [
    pytest.param(PREFIXED, False, id="prefill over a prefix"),
    pytest.param(DECODE, True, id="decode"),
    pytest.param(DECODE, False, id="decode as an extend"),
    pytest.param(VERIFY, True, id="verify"),
]
_PREFIXES = st.lists(st.integers(0, 12), min_size=1, max_size=6)


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize(("requests", "uniform"), BATCHES)
def test_attention_equals_its_definition(
    requests: Requests, heads: AttentionLayer, *, uniform: bool
) -> None:
    """Groups without a decode kernel, and values wider than keys, are what float64 loops give."""
    batch = scene(requests, uniform=uniform, setting=Setting(layer=heads))

    output = batch.run(FlashInfer)

    torch.testing.assert_close(output.double(), reference_attention(batch), atol=1e-5, rtol=1e-5)


@settings(deadline=None, max_examples=30, database=None)
@given(prefixes=_PREFIXES, count=st.integers(1, 6), seed=st.integers(0, 2**16))
def test_attention_follows_any_mask(prefixes: list[int], count: int, seed: int) -> None:
    """Nothing is taken for granted: a mask of one token a request may hide its context too."""
    plain = scene([(n, count) for n in prefixes], uniform=True, setting=Setting(seed=seed))
    generator = torch.Generator().manual_seed(seed)
    visible = [torch.rand(rows.shape, generator=generator) < 0.5 for rows in plain.visible]
    for rows in visible:
        rows[:, -count:] |= torch.eye(count, dtype=torch.bool)
    batch = with_mask(plain, visible)

    output = batch.run(FlashInfer)

    torch.testing.assert_close(output.double(), reference_attention(batch), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("num_steps", [1, 2])
def test_attention_drafts_trees_of_its_declared_width(num_steps: int) -> None:
    """A draft step brings as many tokens a request as are declared, and each has a branch."""
    widest = FLASHINFER.capabilities.max_speculative_topk
    assert isinstance(widest, int)
    wide = beams(widest, num_steps, dice_of(num_steps))
    roomy = Setting(max_context_len=192, num_slots=512)

    batch = masked_scene([(3, wide), (40, wide)], setting=roomy)

    output = batch.run(FlashInfer)
    torch.testing.assert_close(output.double(), reference_attention(batch), atol=1e-5, rtol=1e-5)


def test_attention_refuses_a_cache_of_another_dtype() -> None:
    """FlashInfer's kernels take keys for what queries are: the error names both dtypes."""
    batch = scene(PREFIXED, setting=Setting(cache_dtype=torch.bfloat16))

    with pytest.raises(CacheDtypeError) as caught:
        batch.run(FlashInfer)

    assert str(caught.value) == (
        "backend 'flashinfer' got queries of torch.float32 and a KV cache of torch.bfloat16; one "
        "dtype for both was expected. Set --kv-cache-dtype to auto."
    )
