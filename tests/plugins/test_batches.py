"""What padding, empty batches, odd sizes and masks get that the kit does not draw."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from _pytest.mark import ParameterSet
from hypothesis import given, settings
from hypothesis import strategies as st

from backend_caps.kit.scenes import (
    COMB,
    DECODE,
    FORK,
    GROVE,
    PREFIXED,
    VERIFY,
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
from tests.plugins.backends import BACKENDS, OF_TREES, bounded, with_padding

Make = Callable[[Setting], Scene]
CLEAN, STALE = Setting(poison=0.0), Setting(stale_slot=2**30)
WIDER = Setting(layer=layer_of(head_size=8, value_size=12))
ROOMY = Setting(max_context_len=192, num_slots=512)
"""Room for two contexts of the widest trees."""
NUM_TOKENS = len(FORK)
MAKERS: dict[str, Make] = {
    "prefill": lambda setting: scene(PREFIXED, setting=setting),
    "decode": lambda setting: scene(DECODE, uniform=True, setting=setting),
    "verify": lambda setting: scene(VERIFY, uniform=True, setting=setting),
    "trees": lambda setting: tree_scene(GROVE, setting=setting),
    "trees in a long mask": lambda setting: tree_scene(GROVE, num_spare=1000, setting=setting),
}
every_backend = pytest.mark.parametrize("name", BACKENDS)
every_tree_backend = pytest.mark.parametrize("name", OF_TREES)


def _cases(names: list[str], kinds: list[str]) -> list[ParameterSet]:
    """Pair backends with the batches that they take."""
    return [
        pytest.param(name, MAKERS[kind], id=f"{name}-{kind}")
        for name in names
        for kind in kinds
        if name in OF_TREES or "trees" not in kind
    ]


def _assert_near(output: torch.Tensor, batch: Scene, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(
        output.double(), reference_attention(batch), atol=tolerance, rtol=tolerance
    )


@pytest.mark.parametrize(
    ("name", "make"), _cases([*BACKENDS], ["prefill", "decode", "verify", "trees"])
)
def test_empty_batches_give_empty_outputs(name: str, make: Make) -> None:
    """An idle rank's batch of no requests and no tokens runs, and gives no rows."""
    idle = make(Setting()).select([])

    output = idle.run(BACKENDS[name])

    assert output.shape == (0, idle.layer.tp_q_head_num, idle.layer.v_head_dim)


@every_backend
def test_forward_takes_heads_apart(name: str) -> None:
    """Queries, keys and values may come as [T, heads, size] too, and not only side by side."""
    batch = scene(PREFIXED)
    backend = BACKENDS[name](batch.pools)
    backend.init_forward_metadata(batch.batch)

    output = backend.forward(batch.q, batch.k, batch.v, batch.layer, batch.batch)

    assert torch.equal(output, batch.run(BACKENDS[name]).flatten(1))


@pytest.mark.parametrize(("name", "make"), _cases([*BACKENDS], ["prefill", "trees"]))
def test_page_table_entries_behind_a_context_may_be_no_slots(name: str, make: Make) -> None:
    """Nothing is looked up there, whether or not it would be masked."""
    clean = make(CLEAN).run(BACKENDS[name])

    assert torch.equal(make(STALE).run(BACKENDS[name]), clean)


@pytest.mark.parametrize(("name", "make"), _cases([*OF_TREES], [*MAKERS]))
def test_padding_gets_zeros(name: str, make: Make) -> None:
    """A padded token's output is zero, though nothing of it is a number or a slot."""
    real = make(STALE)

    output = with_padding(real).run(BACKENDS[name])

    assert torch.equal(output[len(real.q) :], torch.zeros_like(real.q))


@every_backend
def test_tokens_after_the_last_request_see_nothing(name: str) -> None:
    """Tokens beyond the sum of the extend lengths, which no request owns, get zeros."""
    real = scene(PREFIXED)

    output = padded(real, rows=0, tokens=2).run(BACKENDS[name])

    assert torch.equal(output[-2:], torch.zeros_like(real.q[:2]))


@every_backend
def test_a_request_of_no_numbers_spoils_no_other(name: str) -> None:
    """One request whose keys and values overflowed leaves the others' outputs as they were."""
    batch = scene(PREFIXED)
    whole = batch.run(BACKENDS[name])
    batch.k[:4] = batch.v[:4] = torch.nan

    assert torch.equal(batch.run(BACKENDS[name])[4:], whole[4:])


@pytest.mark.parametrize(("name", "make"), _cases([*BACKENDS], ["prefill", "decode", "trees"]))
def test_values_may_be_wider_than_keys(name: str, make: Make) -> None:
    """Values of another size than keys give the attention that float64 loops give."""
    batch = make(WIDER)

    _assert_near(bounded(batch).run(BACKENDS[name]), batch)


@every_backend
def test_attention_reads_a_cache_of_another_dtype(name: str) -> None:
    """A 16-bit cache serves a float32 model, within the cache's precision."""
    batch = scene(PREFIXED, setting=Setting(cache_dtype=torch.bfloat16))

    output = bounded(batch).run(BACKENDS[name])

    assert output.dtype == torch.float32
    _assert_near(output, batch, 2e-2)


@every_tree_backend
@settings(deadline=None, max_examples=30, database=None)
@given(
    prefixes=st.lists(st.integers(0, 12), min_size=1, max_size=6),
    count=st.integers(1, 6),
    seed=st.integers(0, 2**16),
)
def test_any_mask_is_followed(name: str, prefixes: list[int], count: int, seed: int) -> None:
    """Nothing is taken for granted: a mask may hide the context's first token, or show the last."""
    plain = scene([(n, count) for n in prefixes], uniform=True, setting=Setting(seed=seed))
    generator = torch.Generator().manual_seed(seed)
    visible = [torch.rand(rows.shape, generator=generator) < 0.5 for rows in plain.visible]
    for rows in visible:
        rows[:, -count:] |= torch.eye(count, dtype=torch.bool)
    batch = with_mask(plain, visible)

    _assert_near(batch.run(BACKENDS[name]), batch)


def _widest(name: str) -> int:
    width = OF_TREES[name].capabilities.max_speculative_topk
    assert isinstance(width, int)
    return width


@every_tree_backend
def test_trees_of_the_declared_width_are_verified(name: str) -> None:
    """A root may have as many children as are declared, each with children of its own or not."""
    widest, dice = _widest(name), dice_of(0)
    tree = (0, *[0] * widest, *(dice.randint(1, widest) for _ in range(widest)))
    batch = tree_scene([(3, tree), (40, tree)], setting=ROOMY)

    _assert_near(batch.run(BACKENDS[name]), batch)


@every_tree_backend
@pytest.mark.parametrize("num_steps", [1, 2])
def test_trees_of_the_declared_width_are_drafted(name: str, num_steps: int) -> None:
    """A draft step brings as many tokens a request as are declared, and each has a branch."""
    wide = beams(_widest(name), num_steps, dice_of(num_steps))
    batch = masked_scene([(3, wide), (40, wide)], setting=ROOMY)

    _assert_near(batch.run(BACKENDS[name]), batch)


@every_tree_backend
@pytest.mark.parametrize("column", [0, 2])
def test_what_no_token_of_a_tree_sees_is_not_read(name: str, column: int) -> None:
    """A place that is hidden from all may hold no number, though it is of the context."""
    requests = []
    for tree in (FORK, COMB):
        before = torch.ones(NUM_TOKENS, 4, dtype=torch.bool)
        before[:, column] = False
        requests.append((0, torch.cat([before, visible_nodes(tree)], dim=1)))
    batch = masked_scene(requests)
    clean = batch.run(BACKENDS[name])
    slots = batch.pools.req_to_token[batch.batch.req_pool_indices, column].long()
    batch.pools.keys[slots] = batch.pools.values[slots] = torch.nan

    assert torch.equal(batch.run(BACKENDS[name]), clean)


@every_tree_backend
def test_padding_of_trees_alone_needs_no_entries(name: str) -> None:
    """Padded requests of length 0, whose mask is empty, get zeros."""
    batch = padded(tree_scene(GROVE).select([]), rows=2, tokens=2 * NUM_TOKENS)
    batch.batch.seq_lens.zero_()

    output = batch.run(BACKENDS[name])

    assert torch.equal(output, torch.zeros_like(output))


@every_tree_backend
def test_padding_between_trees_keeps_its_entries(name: str) -> None:
    """A request that is padding by its row has rows in the mask: those behind it keep theirs."""
    batch = tree_scene(GROVE)
    others = [*range(NUM_TOKENS), *range(2 * NUM_TOKENS, len(batch.q))]
    whole = batch.run(BACKENDS[name])
    batch.batch.req_pool_indices[1] = 0

    output = batch.run(BACKENDS[name])

    assert torch.equal(output[others], whole[others])
    assert not output[NUM_TOKENS : 2 * NUM_TOKENS].any()


@every_tree_backend
def test_a_tree_mask_beside_extend_lengths_is_refused(name: str) -> None:
    """Where each request brings its own number of tokens, the mask's rows would be anyone's."""
    trees = scene(VERIFY)
    batch = with_mask(trees, trees.visible)

    with pytest.raises(AssertionError, match="trees have the same number of tokens"):
        batch.run(BACKENDS[name])
