from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from backend_caps.conformance.scenes import (
    DECODE,
    GROVE,
    PREFIXED,
    VERIFY,
    Requests,
    Scene,
    Setting,
    padded,
    reference_attention,
    scene,
    tree_scene,
)

from .rig import EAGER, with_padding

every_batch = pytest.mark.parametrize(
    ("requests", "uniform"),
    [
        pytest.param(PREFIXED, False, id="prefill"),
        pytest.param(DECODE, True, id="decode"),
        pytest.param(VERIFY, True, id="verify"),
    ],
)
every_scene = pytest.mark.parametrize(
    "batch",
    [
        pytest.param(scene(PREFIXED), id="prefill"),
        pytest.param(scene(DECODE, uniform=True), id="decode"),
        pytest.param(scene(VERIFY, uniform=True), id="verify"),
        pytest.param(tree_scene(GROVE), id="trees"),
    ],
)


@every_batch
@pytest.mark.parametrize("poison", [torch.nan, torch.inf, 1e30])
@pytest.mark.parametrize("stale_slot", [0, Setting().num_slots - 1, 2**30, -(2**30)])
def test_output_is_independent_of_what_nobody_owns(
    requests: Requests, poison: float, stale_slot: int, *, uniform: bool
) -> None:
    """Unowned cache slots and stale page-table entries, out of range even, change no bit."""
    clean = scene(requests, uniform=uniform, setting=Setting(poison=0.0))
    poisoned = Setting(poison=poison, stale_slot=stale_slot)

    output = scene(requests, uniform=uniform, setting=poisoned).run(EAGER)

    assert torch.equal(output, clean.run(EAGER))


@every_scene
def test_padding_leaves_the_real_requests_as_they_are(batch: Scene) -> None:
    """Rows of pool row 0 whose tokens are poison change nothing for the others."""
    alone = batch.run(EAGER)

    output = with_padding(batch).run(EAGER)

    torch.testing.assert_close(output[: len(batch.q)], alone, atol=1e-6, rtol=1e-6)


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
def test_requests_in_another_order_give_the_same_in_that_order(batch: Scene) -> None:
    """Where a request stands in its batch changes nothing but the kernel's last bit."""
    order = [2, 0, 1]
    whole = batch.run(EAGER)

    output = batch.select(order).run(EAGER)

    torch.testing.assert_close(output, batch.take(whole, order), atol=1e-6, rtol=1e-6)


@every_scene
def test_empty_batches_give_empty_outputs(batch: Scene) -> None:
    """An idle rank's batch of no requests and no tokens runs, and gives no rows."""
    idle = batch.select([])

    output = idle.run(EAGER)

    assert output.shape == (0, batch.layer.tp_q_head_num, batch.layer.v_head_dim)


@every_scene
def test_half_batches_do_not_disturb_each_other(batch: Scene) -> None:
    """Two objects whose forwards interleave, as in two-batch overlap, give the whole's output."""
    halves = [batch.select([0, 1]), batch.select([*range(2, len(batch.counts))])]
    backends = [EAGER(batch.pools), EAGER(batch.pools)]

    for half, backend in zip(halves, backends, strict=True):
        backend.init_forward_metadata(half.batch)
    outputs = [half.forward(backend) for half, backend in zip(halves, backends, strict=True)]

    torch.testing.assert_close(
        torch.cat(outputs).double(), reference_attention(batch), atol=1e-5, rtol=1e-5
    )


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


def test_one_preparation_serves_every_layer() -> None:
    """Metadata outlives a layer's forward, and a cache that is filled need not be saved again."""
    batch = scene(PREFIXED)
    backend = EAGER(batch.pools)
    backend.init_forward_metadata(batch.batch)
    first = batch.forward(backend)

    unsaved = replace(batch, k=batch.k + 1, v=batch.v + 1)
    second = unsaved.forward(backend, save_kv_cache=False)

    assert torch.equal(first, second)


def test_forward_takes_heads_apart() -> None:
    """Queries, keys and values may come as [T, heads, size] too, and not only side by side."""
    batch = scene(PREFIXED)
    backend = EAGER(batch.pools)
    backend.init_forward_metadata(batch.batch)

    output = backend.forward(batch.q, batch.k, batch.v, batch.layer, batch.batch)

    assert torch.equal(output, batch.run(EAGER).flatten(1))
