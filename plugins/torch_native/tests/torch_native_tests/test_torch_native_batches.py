from __future__ import annotations

import pytest
import torch
from backend_caps_torch_native import TorchNative, TorchPadded
from backend_caps_torch_native.paged import PagedAttention

from backend_caps.kit.scenes import (
    DECODE,
    GROVE,
    PREFIXED,
    VERIFY,
    Scene,
    Setting,
    scene,
    tree_scene,
)

STALE = Setting(stale_slot=2**30)
CLEAN = Setting(poison=0.0)
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
def test_empty_batches_give_empty_outputs(kind: type[PagedAttention], batch: Scene) -> None:
    """An idle rank's batch of no requests and no tokens runs, and gives no rows."""
    idle = batch.select([])

    output = idle.run(kind)

    assert output.shape == (0, batch.layer.tp_q_head_num, batch.layer.v_head_dim)


def test_empty_batches_of_trees_give_empty_outputs() -> None:
    """So does one whose tree mask is empty."""
    idle = tree_scene(GROVE).select([])

    output = idle.run(TorchPadded)

    assert output.shape == (0, idle.layer.tp_q_head_num, idle.layer.v_head_dim)


@both_backends
def test_forward_takes_heads_apart(kind: type[PagedAttention]) -> None:
    """Queries, keys and values may come as [T, heads, size] too, and not only side by side."""
    batch = scene(PREFIXED)
    backend = kind(batch.pools)
    backend.init_forward_metadata(batch.batch)

    output = backend.forward(batch.q, batch.k, batch.v, batch.layer, batch.batch)

    assert torch.equal(output, batch.run(kind).flatten(1))


@pytest.mark.parametrize("batch", [scene(PREFIXED), tree_scene(GROVE)], ids=["prefill", "trees"])
def test_torch_padded_result_does_not_depend_on_its_memory_bound(
    batch: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gathering one row after the other gives what gathering all together gives."""
    together = batch.run(TorchPadded)

    monkeypatch.setattr("backend_caps_torch_native.padded._TOKENS_AT_ONCE", 1)
    alone = batch.run(TorchPadded)

    torch.testing.assert_close(alone, together, atol=1e-6, rtol=1e-6)


@both_backends
def test_page_table_entries_behind_a_context_may_be_no_slots(kind: type[PagedAttention]) -> None:
    """Nothing is looked up there, whether or not it would be masked."""
    clean = scene(PREFIXED, setting=CLEAN).run(kind)

    output = scene(PREFIXED, setting=STALE).run(kind)

    assert torch.equal(output, clean)


def test_page_table_entries_behind_a_context_of_a_tree_may_be_no_slots() -> None:
    """Nor is it where a tree mask says what is seen."""
    clean = tree_scene(GROVE, setting=CLEAN).run(TorchPadded)

    output = tree_scene(GROVE, setting=STALE).run(TorchPadded)

    assert torch.equal(output, clean)
