from __future__ import annotations

from copy import copy
from dataclasses import replace

import pytest
from backend_caps_torch_native import MissingMirrorError, TorchNative, TreeMaskError
from torch_native_caps import TORCH_NATIVE

from backend_caps.kit.scenes import GROVE, PREFIXED, scene, tree_scene


@pytest.mark.parametrize("field", ["seq_lens_cpu", "extend_seq_lens_cpu"])
def test_torch_native_refuses_a_batch_without_host_lengths(field: str) -> None:
    """The error names the backend, what is missing, what it declares and what to do."""
    whole = scene(PREFIXED)
    batch = copy(whole.batch)
    setattr(batch, field, None)

    with pytest.raises(MissingMirrorError) as caught:
        replace(whole, batch=batch).run(TorchNative)

    assert str(caught.value) == (
        f"backend 'torch_native' got a batch whose {field} is None; it declares "
        "host_seq_lens=EXACT. Configure the FutureMap by a plan that names this backend."
    )


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
