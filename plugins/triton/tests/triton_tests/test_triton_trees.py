"""What the backend makes of a tree mask."""

from __future__ import annotations

import pytest
import torch
from backend_caps_triton import TritonAttention
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from triton_caps import TRITON

from backend_caps.kit.scenes import (
    CHAIN,
    COMB,
    FORK,
    GROVE,
    Scene,
    Setting,
    beams,
    dice_of,
    layer_of,
    masked_scene,
    padded,
    reference_attention,
    scene,
    tree_scene,
    visible_nodes,
    with_mask,
)
from backend_caps.runtime.model.layers import AttentionLayer

pytestmark = pytest.mark.slow

HEADS = [
    pytest.param(layer_of(num_query_heads=2, num_kv_heads=2), id="MHA"),
    pytest.param(layer_of(num_query_heads=6, num_kv_heads=2), id="GQA"),
    pytest.param(layer_of(num_query_heads=4, num_kv_heads=1), id="MQA"),
    pytest.param(layer_of(head_size=8, value_size=12), id="wider values"),
]
NUM_TOKENS = len(FORK)
_WIDEST = TRITON.capabilities.max_speculative_topk
drawing = settings(
    deadline=None,
    max_examples=8,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@pytest.mark.parametrize("heads", HEADS)
def test_tokens_attend_to_their_branch(device: torch.device, heads: AttentionLayer) -> None:
    """A token of a tree sees its context and those it continues, and none of other branches."""
    batch = tree_scene(GROVE, setting=Setting(layer=heads, page_size=16))

    output = batch.on(device).run(TritonAttention).cpu()

    torch.testing.assert_close(output.double(), reference_attention(batch), atol=1e-5, rtol=1e-5)


def test_trees_over_split_contexts_attend_to_their_branch(device: torch.device) -> None:
    """Contexts of several chunks give what one of them would, also where a chunk is hidden."""
    batch = tree_scene([(300, COMB), (2, FORK), (90, CHAIN)], setting=_roomy())

    output = batch.on(device).run(TritonAttention).cpu()

    torch.testing.assert_close(output.double(), reference_attention(batch), atol=1e-5, rtol=1e-5)


@drawing
@given(
    prefixes=st.lists(st.integers(0, 12), min_size=1, max_size=4),
    count=st.integers(1, 6),
    seed=st.integers(0, 2**16),
)
def test_any_mask_is_followed(
    device: torch.device, prefixes: list[int], count: int, seed: int
) -> None:
    """Nothing is taken for granted: a mask may hide the context's first token, or show the last."""
    plain = scene([(n, count) for n in prefixes], uniform=True, setting=Setting(seed=seed))
    generator = torch.Generator().manual_seed(seed)
    visible = [torch.rand(rows.shape, generator=generator) < 0.5 for rows in plain.visible]
    batch = with_mask(plain, visible)

    output = batch.on(device).run(TritonAttention).cpu()

    torch.testing.assert_close(output.double(), reference_attention(batch), atol=1e-5, rtol=1e-5)


def test_tokens_may_see_those_behind_them(device: torch.device) -> None:
    """Where a mask says so, also those that another program has, as of more tokens than one takes.

    A mask is not always a tree's.
    """
    plain = scene([(3, 70), (0, 70)], uniform=True, setting=_roomy())
    batch = with_mask(plain, [torch.ones_like(rows) for rows in plain.visible])

    output = batch.on(device).run(TritonAttention).cpu()

    torch.testing.assert_close(output.double(), reference_attention(batch), atol=1e-5, rtol=1e-5)


def test_trees_of_the_declared_width_are_verified(device: torch.device) -> None:
    """A root may have as many children as are declared, each with children of its own or not."""
    assert isinstance(_WIDEST, int)
    dice = dice_of(0)
    tree = (0, *[0] * _WIDEST, *(dice.randint(1, _WIDEST) for _ in range(_WIDEST)))
    batch = tree_scene([(3, tree), (40, tree)], setting=_roomy())

    output = batch.on(device).run(TritonAttention).cpu()

    torch.testing.assert_close(output.double(), reference_attention(batch), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("num_steps", [1, 2])
def test_trees_of_the_declared_width_are_drafted(device: torch.device, num_steps: int) -> None:
    """A draft step brings as many tokens a request as are declared, and each has a branch."""
    assert isinstance(_WIDEST, int)
    wide = beams(_WIDEST, num_steps, dice_of(num_steps))
    batch = masked_scene([(3, wide), (40, wide)], setting=_roomy())

    output = batch.on(device).run(TritonAttention).cpu()

    torch.testing.assert_close(output.double(), reference_attention(batch), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("column", [0, 2])
def test_what_no_token_sees_is_not_read(device: torch.device, column: int) -> None:
    """What no token of a request sees may be no number, though it is of the request's context."""
    batch = _with_hidden(column).on(device)
    clean = batch.run(TritonAttention)
    slots = batch.pools.req_to_token[batch.batch.req_pool_indices, column].long()
    for buffer in (batch.pools.keys, batch.pools.values):
        buffer[slots] = torch.nan

    output = batch.run(TritonAttention)

    assert torch.equal(output, clean)


@pytest.mark.parametrize("num_spare", [0, 1000])
def test_padding_behind_trees_gets_zeros(device: torch.device, num_spare: int) -> None:
    """Whether the mask has entries for padding or lacks them, it sees nothing, and others all."""
    real = tree_scene(GROVE, num_spare=num_spare, setting=Setting(stale_slot=2**30))

    output = padded(real, rows=3, tokens=3 * NUM_TOKENS).on(device).run(TritonAttention).cpu()

    assert not output[len(real.q) :].any()
    torch.testing.assert_close(
        output[: len(real.q)].double(), reference_attention(real), atol=1e-5, rtol=1e-5
    )


def test_padding_between_trees_keeps_its_entries(device: torch.device) -> None:
    """A request that is padding by its row has rows in the mask: those behind it keep theirs."""
    batch = tree_scene(GROVE)
    others = [*range(NUM_TOKENS), *range(2 * NUM_TOKENS, len(batch.q))]
    whole = batch.on(device).run(TritonAttention)
    batch.batch.req_pool_indices[1] = 0

    output = batch.on(device).run(TritonAttention)

    assert torch.equal(output[others], whole[others])
    assert not output[NUM_TOKENS : 2 * NUM_TOKENS].any()


def _with_hidden(column: int) -> Scene:
    """Make trees over four more positions, one of which no token sees."""
    requests = []
    for tree in (FORK, COMB):
        before = torch.ones(NUM_TOKENS, 4, dtype=torch.bool)
        before[:, column] = False
        requests.append((0, torch.cat([before, visible_nodes(tree)], dim=1)))
    return masked_scene(requests)


def _roomy(seed: int = 0) -> Setting:
    """Make room for contexts of several chunks, and for the widest trees."""
    return Setting(max_context_len=384, num_slots=1024, seed=seed)
