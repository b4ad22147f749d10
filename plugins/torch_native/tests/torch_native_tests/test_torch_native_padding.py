"""What padding gets, which nobody reads; what it does to others is the kit's to look at."""

from __future__ import annotations

import pytest
import torch
from backend_caps_torch_native import TorchNative, TorchPadded
from backend_caps_torch_native.paged import PagedAttention

from backend_caps.kit.scenes import (
    COMB,
    DECODE,
    FORK,
    GROVE,
    PREFIXED,
    VERIFY,
    Scene,
    Setting,
    masked_scene,
    padded,
    scene,
    tree_scene,
    visible_nodes,
)

STALE = Setting(stale_slot=2**30)
NUM_TOKENS = len(FORK)


@pytest.mark.parametrize(
    "real",
    [
        pytest.param(scene(PREFIXED, setting=STALE), id="prefill"),
        pytest.param(scene(DECODE, uniform=True, setting=STALE), id="decode"),
        pytest.param(scene(VERIFY, uniform=True, setting=STALE), id="verify"),
        pytest.param(tree_scene(GROVE, setting=STALE), id="trees"),
        pytest.param(tree_scene(GROVE, num_spare=1000, setting=STALE), id="trees in a long mask"),
    ],
)
def test_torch_padded_gives_zeros_for_padding(real: Scene) -> None:
    """A padded token's output is zero, though nothing of it is a number or a slot."""
    batch = padded(real, rows=len(real.counts), tokens=len(real.q))

    output = batch.run(TorchPadded)

    assert torch.equal(output[len(real.q) :], torch.zeros_like(real.q))


@pytest.mark.parametrize("kind", [TorchNative, TorchPadded])
def test_tokens_after_the_last_request_see_nothing(kind: type[PagedAttention]) -> None:
    """Tokens beyond the sum of the extend lengths, which no request owns, get zeros."""
    real = scene(PREFIXED)

    output = padded(real, rows=0, tokens=2).run(kind)

    assert torch.equal(output[-2:], torch.zeros_like(real.q[:2]))


@pytest.mark.parametrize("length", [0, 1])
def test_torch_native_gives_numbers_for_padding(length: int) -> None:
    """A padded request of length 0 or 1 that brings several tokens gives finite rows."""
    real = scene(VERIFY, uniform=True, setting=Setting(poison=0.0))
    assert real.batch.seq_lens_cpu is not None
    real.batch.req_pool_indices[1] = 0
    real.batch.seq_lens_cpu[1] = length

    output = real.run(TorchNative)

    assert output.isfinite().all()


def test_padding_of_trees_alone_needs_no_entries() -> None:
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


@pytest.mark.parametrize("column", [0, 2])
def test_what_no_token_of_a_tree_sees_is_not_read(column: int) -> None:
    """A place that is hidden from all may hold no number, though it is of the context."""
    batch = _with_hidden(column)
    clean = batch.run(TorchPadded)
    slots = batch.pools.req_to_token[batch.batch.req_pool_indices, column].long()
    for buffer in (batch.pools.keys, batch.pools.values):
        buffer[slots] = torch.nan

    output = batch.run(TorchPadded)

    assert torch.equal(output, clean)


def _with_hidden(column: int) -> Scene:
    """Make trees over four more positions, one of which no token sees."""
    requests = []
    for tree in (FORK, COMB):
        nodes = visible_nodes(tree)
        before = torch.ones(NUM_TOKENS, 4, dtype=torch.bool)
        before[:, column] = False
        requests.append((0, torch.cat([before, nodes], dim=1)))
    return masked_scene(requests)
