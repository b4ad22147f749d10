"""Scenes, and the attention that backends are measured against."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, stack

from backend_caps.kit.scenes import (
    DECODE,
    GROVE,
    PREFIXED,
    VERIFY,
    Scene,
    Setting,
    layer_of,
    padded,
    reference_attention,
    scene,
    tree_scene,
)

SCENES = [
    pytest.param(scene(PREFIXED), id="prefill"),
    pytest.param(scene(DECODE, uniform=True), id="decode"),
    pytest.param(scene(VERIFY, setting=Setting(layer=layer_of(6, 2, 8, 12))), id="verify"),
    pytest.param(tree_scene(GROVE), id="trees"),
]
every_scene = pytest.mark.parametrize("own", SCENES)


@every_scene
def test_reference_is_the_definition_written_out(own: Scene) -> None:
    """The reference gives what one query and one head at a time give, by exponents and sums."""
    queries = iter(own.q.double())
    by_hand = [
        _one_token(next(queries), keys[seen], values[seen], own.layer.scaling)
        for (keys, values), visible in zip(own.contexts, own.visible, strict=True)
        for seen in visible
    ]

    torch.testing.assert_close(reference_attention(own), stack(by_hand))


@every_scene
def test_pools_hold_the_contexts_and_poison(own: Scene) -> None:
    """What the page table names is the context without the new tokens; the rest is no number."""
    pools, batch = own.pools, own.batch
    slots = [
        pools.req_to_token[row, :length].long()
        for row, length in zip(batch.req_pool_indices, batch.seq_lens, strict=True)
    ]

    for (keys, _), held, count in zip(own.contexts, slots, own.counts, strict=True):
        assert torch.equal(pools.keys[held[: len(held) - count]], keys[: len(held) - count])
    assert torch.equal(
        torch.cat([held[-n:] for held, n in zip(slots, own.counts, strict=True)]),
        batch.out_cache_loc,
    )
    num_cached = int(batch.seq_lens.sum()) - sum(own.counts)
    assert int((~pools.keys.isnan().all((1, 2))).sum()) == num_cached


def test_tokens_that_see_nothing_get_zeros() -> None:
    """A row of a mask that hides all has no softmax; its output is zero."""
    own = tree_scene(GROVE)
    own.visible[0][1] = False

    output = reference_attention(own)

    assert torch.equal(output[1], torch.zeros_like(output[1]))


def test_padding_is_as_a_graph_runner_pads() -> None:
    """Requests of pool row 0 and length 1 follow, with tokens that are no numbers."""
    own = padded(scene(PREFIXED), rows=2, tokens=3)

    assert own.batch.req_pool_indices[-2:].tolist() == [0, 0]
    assert own.batch.seq_lens[-2:].tolist() == [1, 1]
    assert own.batch.out_cache_loc[-3:].tolist() == [0, 0, 0]
    assert bool(own.q[-3:].isnan().all())


def _one_token(query: Tensor, keys: Tensor, values: Tensor, scaling: float) -> Tensor:
    group = len(query) // keys.shape[1]
    heads = []
    for head, q in enumerate(query):
        k, v = keys[:, head // group].double(), values[:, head // group].double()
        weights = (k @ q * scaling).exp()
        heads.append((weights[:, None] * v).sum(0) / weights.sum())
    return stack(heads)
