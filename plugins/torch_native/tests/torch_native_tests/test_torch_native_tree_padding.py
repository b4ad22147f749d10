"""What `torch_padded` leaves alone in batches of trees, and what it makes of batches cut apart."""

from __future__ import annotations

import pytest
import torch
from backend_caps_torch_native import TorchPadded

from backend_caps.conformance.scenes import (
    COMB,
    FORK,
    GROVE,
    Scene,
    Setting,
    masked_scene,
    padded,
    reference_attention,
    tree_scene,
    visible_nodes,
)

NUM_TOKENS = len(FORK)


@pytest.mark.parametrize("poison", [torch.nan, torch.inf, 1e30])
@pytest.mark.parametrize("stale_slot", [0, Setting().num_slots - 1, 2**30, -(2**30)])
def test_trees_are_independent_of_what_nobody_owns(poison: float, stale_slot: int) -> None:
    """Unowned cache slots and stale page-table entries, out of range even, change no bit."""
    clean = tree_scene(GROVE, setting=Setting(poison=0.0))
    poisoned = Setting(poison=poison, stale_slot=stale_slot)

    output = tree_scene(GROVE, setting=poisoned).run(TorchPadded)

    assert torch.equal(output, clean.run(TorchPadded))


@pytest.mark.parametrize("column", [0, 2])
def test_trees_are_independent_of_what_none_of_their_tokens_sees(column: int) -> None:
    """What no token of a request sees may be no number, though it is of the request's context."""
    batch = _with_hidden(column)
    clean = batch.run(TorchPadded)
    slots = batch.pools.req_to_token[batch.batch.req_pool_indices, column].long()
    for buffer in (batch.pools.keys, batch.pools.values):
        buffer[slots] = torch.nan

    output = batch.run(TorchPadded)

    assert torch.equal(output, clean)


@pytest.mark.parametrize("num_spare", [0, 2, 1000])
def test_padding_leaves_the_trees_as_they_are(num_spare: int) -> None:
    """Padding changes nothing for the others, whether the mask has entries for it, or lacks them.

    What a mask that was made for more requests holds there may be of any earlier batch.
    """
    real = tree_scene(GROVE, num_spare=num_spare)

    output = padded(real, rows=3, tokens=3 * NUM_TOKENS).run(TorchPadded)

    torch.testing.assert_close(output[: len(real.q)], real.run(TorchPadded), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("num_spare", [0, 2, 1000])
def test_torch_padded_gives_zeros_for_padding_behind_trees(num_spare: int) -> None:
    """A padded token's output is zero, whatever the mask shows it."""
    real = tree_scene(GROVE, num_spare=num_spare, setting=Setting(stale_slot=2**30))

    output = padded(real, rows=3, tokens=3 * NUM_TOKENS).run(TorchPadded)

    assert torch.equal(output[len(real.q) :], torch.zeros_like(real.q[: 3 * NUM_TOKENS]))


def test_a_batch_of_padding_alone_needs_no_entries() -> None:
    """Padded requests of length 0, whose mask is empty, get zeros."""
    idle = tree_scene(GROVE).select([])
    batch = padded(idle, rows=2, tokens=2 * NUM_TOKENS)
    batch.batch.seq_lens.zero_()

    output = batch.run(TorchPadded)

    assert torch.equal(output, torch.zeros_like(output))


def test_padding_between_trees_keeps_its_entries() -> None:
    """A request that is padding by its row has rows in the mask: those behind it keep theirs."""
    batch = tree_scene(GROVE)
    others = [*range(NUM_TOKENS), *range(2 * NUM_TOKENS, len(batch.q))]
    whole = batch.run(TorchPadded)
    batch.batch.req_pool_indices[1] = 0

    output = batch.run(TorchPadded)

    assert torch.equal(output[others], whole[others])
    assert not output[NUM_TOKENS : 2 * NUM_TOKENS].any()


def test_empty_batches_of_trees_give_empty_outputs() -> None:
    """An idle rank's batch of no requests and an empty mask runs, and gives no rows."""
    idle = tree_scene(GROVE).select([])

    output = idle.run(TorchPadded)

    assert output.shape == (0, idle.layer.tp_q_head_num, idle.layer.v_head_dim)


def test_trees_in_another_order_give_the_same_in_that_order() -> None:
    """Where a request stands in its batch changes nothing but the kernel's last bit."""
    batch, order = tree_scene(GROVE), [2, 0, 3, 1]

    output = batch.select(order).run(TorchPadded)

    in_order = batch.take(batch.run(TorchPadded), order)
    torch.testing.assert_close(output, in_order, atol=1e-6, rtol=1e-6)


def test_half_batches_of_trees_do_not_disturb_each_other() -> None:
    """Two objects whose forwards interleave, each with its part of the mask, give the whole."""
    batch = tree_scene(GROVE)
    halves = [batch.select([0, 1, 2]), batch.select([3])]
    backends = [TorchPadded(batch.pools), TorchPadded(batch.pools)]

    for half, backend in zip(halves, backends, strict=True):
        backend.init_forward_metadata(half.batch)
    outputs = [half.forward(backend) for half, backend in zip(halves, backends, strict=True)]

    torch.testing.assert_close(
        torch.cat(outputs).double(), reference_attention(batch), atol=1e-5, rtol=1e-5
    )


def _with_hidden(column: int) -> Scene:
    """Make trees over four more positions, one of which no token sees."""
    requests = []
    for tree in (FORK, COMB):
        nodes = visible_nodes(tree)
        before = torch.ones(NUM_TOKENS, 4, dtype=torch.bool)
        before[:, column] = False
        requests.append((0, torch.cat([before, nodes], dim=1)))
    return masked_scene(requests)
