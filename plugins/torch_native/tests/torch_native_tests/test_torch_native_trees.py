"""What `torch_padded` makes of a tree mask."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from backend_caps_torch_native import TorchNative, TorchPadded, TreeMaskError
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_native_caps import TORCH_NATIVE, TORCH_PADDED

from backend_caps.conformance.scenes import (
    CHAIN,
    GROVE,
    VERIFY,
    Setting,
    Tree,
    beams,
    causal,
    dice_of,
    layer_of,
    masked_scene,
    random_tree,
    reference_attention,
    scene,
    tree_scene,
    visible_nodes,
    with_mask,
)
from backend_caps.runtime.layer import AttentionLayer

HEADS = [
    pytest.param(layer_of(num_query_heads=2, num_kv_heads=2), id="MHA"),
    pytest.param(layer_of(num_query_heads=6, num_kv_heads=2), id="GQA"),
    pytest.param(layer_of(num_query_heads=4, num_kv_heads=1), id="MQA"),
    pytest.param(layer_of(head_size=8, value_size=12), id="wider values"),
]
_PREFIXES = st.lists(st.integers(0, 12), min_size=1, max_size=6)
_WIDEST = TORCH_PADDED.capabilities.max_speculative_topk


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("heads", HEADS)
def test_torch_padded_attends_to_the_branch_of_each_token(
    heads: AttentionLayer, page_size: int
) -> None:
    """A token of a tree sees its context and those it continues, and none of other branches."""
    batch = tree_scene(GROVE, setting=Setting(layer=heads, page_size=page_size))

    output = batch.run(TorchPadded)

    torch.testing.assert_close(output.double(), reference_attention(batch), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [
        pytest.param(torch.bfloat16, 2e-2, id="bfloat16"),
        pytest.param(torch.float16, 2e-3, id="float16"),
    ],
)
def test_torch_padded_attends_to_trees_in_half_precision(
    dtype: torch.dtype, tolerance: float
) -> None:
    """In 16 bits the output keeps its dtype, and is as near as that dtype allows."""
    batch = tree_scene(GROVE, setting=Setting(dtype=dtype))

    output = batch.run(TorchPadded)

    assert output.dtype == dtype
    torch.testing.assert_close(
        output.double(), reference_attention(batch), atol=tolerance, rtol=tolerance
    )


@settings(deadline=None, max_examples=80, database=None)
@given(
    prefixes=_PREFIXES,
    num_tokens=st.integers(1, 12),
    topk=st.integers(1, 5),
    heads=st.sampled_from([layer_of(), layer_of(num_query_heads=3, num_kv_heads=3)]),
    page_size=st.sampled_from([1, 4, 16]),
    num_spare=st.integers(0, 99),
    seed=st.integers(0, 2**16),
)
def test_torch_padded_verifies_any_trees(
    prefixes: list[int],
    num_tokens: int,
    topk: int,
    heads: AttentionLayer,
    page_size: int,
    num_spare: int,
    seed: int,
) -> None:
    """Whatever grows over whatever contexts, and however long the mask is, the definition holds."""
    dice, setting = dice_of(seed), Setting(layer=heads, page_size=page_size, seed=seed)
    requests = [(prefix, random_tree(num_tokens, topk, dice)) for prefix in prefixes]
    batch = tree_scene(requests, num_spare=num_spare, setting=setting)

    output = batch.run(TorchPadded)

    torch.testing.assert_close(output.double(), reference_attention(batch), atol=1e-5, rtol=1e-5)


@settings(deadline=None, max_examples=40, database=None)
@given(
    prefixes=_PREFIXES,
    topk=st.integers(1, 4),
    num_steps=st.integers(1, 3),
    seed=st.integers(0, 2**16),
)
def test_torch_padded_drafts_any_trees(
    prefixes: list[int], topk: int, num_steps: int, seed: int
) -> None:
    """A draft step's tokens see their own branch of what the steps before have stored."""
    dice = dice_of(seed)
    requests = [(prefix, beams(topk, num_steps, dice)) for prefix in prefixes]
    batch = masked_scene(requests, setting=Setting(seed=seed))

    output = batch.run(TorchPadded)

    torch.testing.assert_close(output.double(), reference_attention(batch), atol=1e-5, rtol=1e-5)


@settings(deadline=None, max_examples=40, database=None)
@given(prefixes=_PREFIXES, count=st.integers(1, 6), seed=st.integers(0, 2**16))
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


@pytest.mark.parametrize("prefixes", [(0,), (4, 0, 18), (18, 1, 1, 7)])
def test_torch_padded_makes_of_a_chain_what_it_makes_of_no_mask(prefixes: Sequence[int]) -> None:
    """The mask of a chain says what is so without a mask, and gives the same to the last bit."""
    chains = tree_scene([(prefix, CHAIN) for prefix in prefixes])
    plain = scene([(prefix, len(CHAIN)) for prefix in prefixes], uniform=True)

    output = chains.run(TorchPadded)

    assert torch.equal(output, plain.run(TorchPadded))


@pytest.mark.parametrize("tree", [(0, 0, 0), (0, 0, 1)])
def test_visible_nodes_are_those_of_the_branch(tree: Tree) -> None:
    """Of three nodes the last sees the one between them only where it continues it."""
    visible = visible_nodes(tree)

    assert torch.equal(visible[:2], causal(3, 3)[:2])
    assert visible[2].tolist() == [True, tree[2] == 1, True]


@pytest.mark.parametrize("entries", [True, False])
def test_torch_padded_reads_no_spare_entries(*, entries: bool) -> None:
    """What stands in the mask behind the last request's entries changes no bit."""
    batch = tree_scene(GROVE, num_spare=1000)
    assert batch.batch.tree_mask is not None
    batch.batch.tree_mask[-1000:] = entries

    output = batch.run(TorchPadded)

    assert torch.equal(output, tree_scene(GROVE).run(TorchPadded))


def test_torch_padded_result_for_trees_does_not_depend_on_its_memory_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Reading one request's mask after the other gives what reading all together gives."""
    batch = tree_scene(GROVE)
    together = batch.run(TorchPadded)

    monkeypatch.setattr("backend_caps_torch_native.padded._TOKENS_AT_ONCE", 1)
    alone = batch.run(TorchPadded)

    torch.testing.assert_close(alone, together, atol=1e-6, rtol=1e-6)


def test_torch_padded_refuses_a_tree_mask_beside_extend_lengths() -> None:
    """Where each request brings its own number of tokens, the mask's rows would be anyone's."""
    trees = scene(VERIFY)
    batch = with_mask(trees, trees.visible)

    with pytest.raises(AssertionError, match="trees have the same number of tokens"):
        batch.run(TorchPadded)


def test_torch_native_refuses_trees() -> None:
    """The error names the backend, what came, what it declares and what to do."""
    batch = tree_scene(GROVE)

    with pytest.raises(TreeMaskError) as caught:
        batch.run(TorchNative)

    assert TORCH_NATIVE.capabilities.max_speculative_topk == 1
    assert str(caught.value) == (
        "backend 'torch_native' got a batch with a tree mask of 180 entries; it declares "
        "max_speculative_topk=1, a chain, where each token sees all before it. "
        "Set --speculative-eagle-topk to 1, or use another backend."
    )


def _roomy() -> Setting:
    """Make room for two contexts of the widest trees."""
    return Setting(max_context_len=192, num_slots=512)
