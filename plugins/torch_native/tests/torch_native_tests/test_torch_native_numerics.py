"""Sizes and masks that the kit does not draw; it holds the others."""

from __future__ import annotations

import pytest
import torch
from backend_caps_torch_native import TorchNative, TorchPadded
from backend_caps_torch_native.paged import PagedAttention
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_native_caps import TORCH_PADDED

from backend_caps.kit.scenes import (
    DECODE,
    GROVE,
    PREFIXED,
    Scene,
    Setting,
    beams,
    dice_of,
    layer_of,
    masked_scene,
    reference_attention,
    scene,
    tree_scene,
    with_mask,
)

both_backends = pytest.mark.parametrize("kind", [TorchNative, TorchPadded])
_WIDER = Setting(layer=layer_of(head_size=8, value_size=12))
_WIDEST = TORCH_PADDED.capabilities.max_speculative_topk


@both_backends
@pytest.mark.parametrize(
    "batch",
    [
        pytest.param(scene(PREFIXED, setting=_WIDER), id="prefill"),
        pytest.param(scene(DECODE, uniform=True, setting=_WIDER), id="decode"),
    ],
)
def test_values_may_be_wider_than_keys(kind: type[PagedAttention], batch: Scene) -> None:
    """Values of another size than keys give the attention that float64 loops give."""
    output = batch.run(kind)

    torch.testing.assert_close(output.double(), reference_attention(batch), atol=1e-5, rtol=1e-5)


def test_values_of_trees_may_be_wider_than_keys() -> None:
    """So do those that a tree mask picks."""
    batch = tree_scene(GROVE, setting=_WIDER)

    output = batch.run(TorchPadded)

    torch.testing.assert_close(output.double(), reference_attention(batch), atol=1e-5, rtol=1e-5)


@both_backends
def test_attention_reads_a_cache_of_another_dtype(kind: type[PagedAttention]) -> None:
    """A 16-bit cache serves a float32 model, within the cache's precision."""
    batch = scene(PREFIXED, setting=Setting(cache_dtype=torch.bfloat16))

    output = batch.run(kind)

    assert output.dtype == torch.float32
    torch.testing.assert_close(output.double(), reference_attention(batch), atol=2e-2, rtol=2e-2)


@settings(deadline=None, max_examples=40, database=None)
@given(
    prefixes=st.lists(st.integers(0, 12), min_size=1, max_size=6),
    count=st.integers(1, 6),
    seed=st.integers(0, 2**16),
)
def test_torch_padded_follows_any_mask(prefixes: list[int], count: int, seed: int) -> None:
    """Nothing is taken for granted: a mask may hide the context's first token, or show the last."""
    plain = scene([(n, count) for n in prefixes], uniform=True, setting=Setting(seed=seed))
    generator = torch.Generator().manual_seed(seed)
    visible = [torch.rand(rows.shape, generator=generator) < 0.5 for rows in plain.visible]
    for rows in visible:
        rows[:, -count:] |= torch.eye(count, dtype=torch.bool)
    batch = with_mask(plain, visible)

    output = batch.run(TorchPadded)

    torch.testing.assert_close(output.double(), reference_attention(batch), atol=1e-5, rtol=1e-5)


def test_torch_padded_verifies_trees_of_its_declared_width() -> None:
    """A root may have as many children as are declared, each with children of its own or not."""
    assert isinstance(_WIDEST, int)
    dice = dice_of(0)
    tree = (0, *[0] * _WIDEST, *(dice.randint(1, _WIDEST) for _ in range(_WIDEST)))
    batch = tree_scene([(3, tree), (40, tree)], setting=_roomy())

    output = batch.run(TorchPadded)

    torch.testing.assert_close(output.double(), reference_attention(batch), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("num_steps", [1, 2])
def test_torch_padded_drafts_trees_of_its_declared_width(num_steps: int) -> None:
    """A draft step brings as many tokens a request as are declared, and each has a branch."""
    assert isinstance(_WIDEST, int)
    wide = beams(_WIDEST, num_steps, dice_of(num_steps))
    batch = masked_scene([(3, wide), (40, wide)], setting=_roomy())

    output = batch.run(TorchPadded)

    torch.testing.assert_close(output.double(), reference_attention(batch), atol=1e-5, rtol=1e-5)


def _roomy() -> Setting:
    """Make room for two contexts of the widest trees."""
    return Setting(max_context_len=192, num_slots=512)
