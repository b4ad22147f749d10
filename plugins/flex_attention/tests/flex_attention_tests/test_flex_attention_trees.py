"""Masks that the kit does not draw, and what padding gets beside trees."""

from __future__ import annotations

import pytest
import torch
from flex_attention_caps import FLEX_ATTENTION
from hypothesis import given, settings
from hypothesis import strategies as st

from backend_caps.kit.scenes import (
    GROVE,
    VERIFY,
    Setting,
    beams,
    dice_of,
    masked_scene,
    padded,
    reference_attention,
    scene,
    tree_scene,
    visible_nodes,
    with_mask,
)

from .rig import EAGER

_PREFIXES = st.lists(st.integers(0, 12), min_size=1, max_size=6)
_WIDEST = FLEX_ATTENTION.capabilities.max_speculative_topk
_ROOMY = Setting(max_context_len=192, num_slots=512)


@settings(deadline=None, max_examples=30, database=None)
@given(prefixes=_PREFIXES, count=st.integers(1, 6), seed=st.integers(0, 2**16))
def test_any_mask_is_followed(prefixes: list[int], count: int, seed: int) -> None:
    """Nothing is taken for granted: a mask may hide the context's first token, or show the last."""
    plain = scene([(n, count) for n in prefixes], uniform=True, setting=Setting(seed=seed))
    generator = torch.Generator().manual_seed(seed)
    visible = [torch.rand(rows.shape, generator=generator) < 0.5 for rows in plain.visible]
    for rows in visible:
        rows[:, -count:] |= torch.eye(count, dtype=torch.bool)
    batch = with_mask(plain, visible)

    output = batch.run(EAGER)

    torch.testing.assert_close(output.double(), reference_attention(batch), atol=1e-5, rtol=1e-5)


def test_trees_of_the_declared_width_are_verified() -> None:
    """A root may have as many children as are declared, each with children of its own or not."""
    assert isinstance(_WIDEST, int)
    dice = dice_of(0)
    tree = (0, *[0] * _WIDEST, *(dice.randint(1, _WIDEST) for _ in range(_WIDEST)))
    batch = tree_scene([(3, tree), (40, tree)], setting=_ROOMY)

    output = batch.run(EAGER)

    torch.testing.assert_close(output.double(), reference_attention(batch), atol=1e-5, rtol=1e-5)


def test_trees_of_the_declared_width_are_drafted() -> None:
    """A draft step brings as many tokens a request as are declared, and each has a branch."""
    assert isinstance(_WIDEST, int)
    wide = beams(_WIDEST, 2, dice_of(2))
    batch = masked_scene([(3, wide), (40, wide)], setting=_ROOMY)

    output = batch.run(EAGER)

    torch.testing.assert_close(output.double(), reference_attention(batch), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("column", [0, 2])
def test_what_no_token_of_a_tree_sees_is_not_read(column: int) -> None:
    """A place that is hidden from all may hold no number, though it is of the context."""
    nodes = visible_nodes(GROVE[0][1])
    before = torch.ones(len(nodes), 4, dtype=torch.bool)
    before[:, column] = False
    batch = masked_scene([(0, torch.cat([before, nodes], dim=1))])
    clean = batch.run(EAGER)
    slots = batch.pools.req_to_token[batch.batch.req_pool_indices, column].long()
    batch.pools.keys[slots] = batch.pools.values[slots] = torch.nan

    output = batch.run(EAGER)

    assert torch.equal(output, clean)


@pytest.mark.parametrize("num_spare", [0, 2, 1000])
def test_padding_behind_trees_gets_zeros(num_spare: int) -> None:
    """A padded token's output is zero, whatever the mask shows it."""
    real = tree_scene(GROVE, num_spare=num_spare, setting=Setting(stale_slot=2**30))

    output = padded(real, rows=3, tokens=12).run(EAGER)

    assert torch.equal(output[len(real.q) :], torch.zeros_like(output[len(real.q) :]))


def test_padding_between_trees_keeps_its_entries() -> None:
    """A request that is padding by its row has rows in the mask: those behind it keep theirs."""
    batch = tree_scene(GROVE)
    whole = batch.run(EAGER)
    batch.batch.req_pool_indices[1] = 0

    output = batch.run(EAGER)

    assert torch.equal(output[8:], whole[8:])
    assert not output[4:8].any()


def test_a_tree_mask_beside_extend_lengths_is_refused() -> None:
    """Where each request brings its own number of tokens, the mask's rows would be anyone's."""
    trees = scene(VERIFY)
    batch = with_mask(trees, trees.visible)

    with pytest.raises(AssertionError, match="trees have the same number of tokens"):
        batch.run(EAGER)
