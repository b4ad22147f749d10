from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from backend_caps_torch_native import TorchNative, TorchPadded
from backend_caps_torch_native.paged import PagedAttention

from backend_caps.conformance.scenes import (
    DECODE,
    PREFIXED,
    VERIFY,
    Scene,
    reference_attention,
    scene,
)

both_backends = pytest.mark.parametrize("kind", [TorchNative, TorchPadded])
every_batch = pytest.mark.parametrize(
    "batch",
    [
        pytest.param(scene(PREFIXED), id="prefill"),
        pytest.param(scene(DECODE, uniform=True), id="decode"),
        pytest.param(scene(VERIFY, uniform=True), id="verify"),
    ],
)


@both_backends
@every_batch
def test_requests_in_another_order_give_the_same_in_that_order(
    kind: type[PagedAttention], batch: Scene
) -> None:
    """Where a request stands in its batch changes nothing but the kernel's last bit."""
    order = [2, 0, 1]

    output = batch.select(order).run(kind)

    in_order = batch.take(batch.run(kind), order)
    torch.testing.assert_close(output, in_order, atol=1e-6, rtol=1e-6)


@both_backends
@every_batch
def test_empty_batches_give_empty_outputs(kind: type[PagedAttention], batch: Scene) -> None:
    """An idle rank's batch of no requests and no tokens runs, and gives no rows."""
    idle = batch.select([])

    output = idle.run(kind)

    assert output.shape == (0, batch.layer.tp_q_head_num, batch.layer.v_head_dim)


@both_backends
@every_batch
def test_half_batches_do_not_disturb_each_other(kind: type[PagedAttention], batch: Scene) -> None:
    """Two objects whose forwards interleave, as in two-batch overlap, give the whole's output."""
    halves = [batch.select([0, 1]), batch.select([2])]
    backends = [kind(batch.pools), kind(batch.pools)]

    for half, backend in zip(halves, backends, strict=True):
        backend.init_forward_metadata(half.batch)
    outputs = [half.forward(backend) for half, backend in zip(halves, backends, strict=True)]

    torch.testing.assert_close(
        torch.cat(outputs).double(), reference_attention(batch), atol=1e-5, rtol=1e-5
    )


@both_backends
def test_one_preparation_serves_every_layer(kind: type[PagedAttention]) -> None:
    """Metadata outlives a layer's forward, and a cache that is filled need not be saved again."""
    batch = scene(PREFIXED)
    backend = kind(batch.pools)
    backend.init_forward_metadata(batch.batch)

    first = batch.forward(backend)
    unsaved = replace(batch, k=batch.k + 1, v=batch.v + 1)
    second = unsaved.forward(backend, save_kv_cache=False)

    assert torch.equal(first, second)


@both_backends
def test_forward_takes_heads_apart(kind: type[PagedAttention]) -> None:
    """Queries, keys and values may come as [T, heads, size] too, and not only side by side."""
    batch = scene(PREFIXED)
    backend = kind(batch.pools)
    backend.init_forward_metadata(batch.batch)

    output = backend.forward(batch.q, batch.k, batch.v, batch.layer, batch.batch)

    assert torch.equal(output, batch.run(kind).flatten(1))


def test_torch_padded_result_does_not_depend_on_its_memory_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Gathering one row after the other gives what gathering all together gives."""
    batch = scene(PREFIXED)
    together = batch.run(TorchPadded)

    monkeypatch.setattr("backend_caps_torch_native.padded._TOKENS_AT_ONCE", 1)
    alone = batch.run(TorchPadded)

    torch.testing.assert_close(alone, together, atol=1e-6, rtol=1e-6)
