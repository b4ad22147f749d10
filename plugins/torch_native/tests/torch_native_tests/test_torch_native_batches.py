"""What each of the two has of its own; `tests/plugins` holds what they share with others."""

from __future__ import annotations

import pytest
import torch
from backend_caps_torch_native import TorchNative, TorchPadded

from backend_caps.kit.scenes import GROVE, PREFIXED, VERIFY, Scene, Setting, scene, tree_scene


@pytest.mark.parametrize("batch", [scene(PREFIXED), tree_scene(GROVE)], ids=["prefill", "trees"])
def test_torch_padded_result_does_not_depend_on_its_memory_bound(
    batch: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gathering one row after the other gives what gathering all together gives."""
    together = batch.run(TorchPadded)

    monkeypatch.setattr("backend_caps_torch_native.padded._TOKENS_AT_ONCE", 1)
    alone = batch.run(TorchPadded)

    torch.testing.assert_close(alone, together, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("length", [0, 1])
def test_torch_native_gives_numbers_for_padding(length: int) -> None:
    """A padded request of length 0 or 1 that brings several tokens gives finite rows."""
    real = scene(VERIFY, uniform=True, setting=Setting(poison=0.0))
    assert real.batch.seq_lens_cpu is not None
    real.batch.req_pool_indices[1] = 0
    real.batch.seq_lens_cpu[1] = length

    output = real.run(TorchNative)

    assert output.isfinite().all()
