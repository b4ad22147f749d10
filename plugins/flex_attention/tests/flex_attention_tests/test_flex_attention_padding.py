"""What padding and idle ranks get; what it does to others is the kit's to look at."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch

from backend_caps.kit.scenes import (
    DECODE,
    GROVE,
    PREFIXED,
    VERIFY,
    Scene,
    Setting,
    padded,
    scene,
    tree_scene,
)

from .rig import EAGER, with_padding

every_scene = pytest.mark.parametrize(
    "batch",
    [
        pytest.param(scene(PREFIXED), id="prefill"),
        pytest.param(scene(DECODE, uniform=True), id="decode"),
        pytest.param(scene(VERIFY, uniform=True), id="verify"),
        pytest.param(tree_scene(GROVE), id="trees"),
    ],
)


@pytest.mark.parametrize("make", [partial(scene, PREFIXED), partial(tree_scene, GROVE)])
def test_page_table_entries_behind_a_context_may_be_no_slots(make: Callable[..., Scene]) -> None:
    """Nothing is looked up there, whether or not it would be masked."""
    clean = make(setting=Setting(poison=0.0)).run(EAGER)

    output = make(setting=Setting(stale_slot=2**30)).run(EAGER)

    assert torch.equal(output, clean)


@every_scene
def test_padding_gets_zeros(batch: Scene) -> None:
    """A padded token's output is zero, though nothing of it is a number."""
    output = with_padding(batch).run(EAGER)

    assert torch.equal(output[len(batch.q) :], torch.zeros_like(batch.q))


def test_tokens_after_the_last_request_see_nothing() -> None:
    """Tokens beyond the sum of the extend lengths, which no request owns, get zeros."""
    real = scene(PREFIXED)

    output = padded(real, rows=0, tokens=2).run(EAGER)

    assert torch.equal(output[-2:], torch.zeros_like(real.q[:2]))


def test_a_request_of_no_numbers_spoils_no_other() -> None:
    """One request whose keys and values overflowed leaves the others' outputs as they were."""
    batch = scene(PREFIXED)
    whole = batch.run(EAGER)
    batch.k[:4] = batch.v[:4] = torch.nan

    output = batch.run(EAGER)

    assert torch.equal(output[4:], whole[4:])


@every_scene
def test_empty_batches_give_empty_outputs(batch: Scene) -> None:
    """An idle rank's batch of no requests and no tokens runs, and gives no rows."""
    idle = batch.select([])

    output = idle.run(EAGER)

    assert output.shape == (0, batch.layer.tp_q_head_num, batch.layer.v_head_dim)


@every_scene
def test_output_does_not_depend_on_the_bounds_of_memory(
    batch: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One context after the other, and few tokens at a time, give what all together give."""
    together = batch.run(EAGER)
    monkeypatch.setattr("backend_caps_flex_attention.parts._TOKENS_AT_ONCE", 1)
    monkeypatch.setattr("backend_caps_flex_attention.parts._QUERIES_AT_ONCE", 2)

    apart = batch.run(EAGER)

    torch.testing.assert_close(apart, together, atol=1e-6, rtol=1e-6)


def test_forward_takes_heads_apart() -> None:
    """Queries, keys and values may come as [T, heads, size] too, and not only side by side."""
    batch = scene(PREFIXED)
    backend = EAGER(batch.pools)
    backend.init_forward_metadata(batch.batch)

    output = backend.forward(batch.q, batch.k, batch.v, batch.layer, batch.batch)

    assert torch.equal(output, batch.run(EAGER).flatten(1))
