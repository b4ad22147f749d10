from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import replace
from typing import cast

import pytest
import torch
from backend_caps_torch_native import MissingMirrorError, TorchNative, TorchPadded
from backend_caps_torch_native.paged import PagedAttention
from torch import Tensor

from backend_caps.conformance.scenes import (
    DECODE,
    GROVE,
    PREFIXED,
    VERIFY,
    Scene,
    scene,
    tree_scene,
)

from .watch import Recording, Trap

BATCHES = [
    pytest.param(scene(PREFIXED), id="prefill"),
    pytest.param(scene(DECODE, uniform=True), id="decode"),
    pytest.param(scene(VERIFY, uniform=True), id="verify"),
]
every_batch = pytest.mark.parametrize("batch", BATCHES)
every_batch_and_trees = pytest.mark.parametrize(
    "batch", [*BATCHES, pytest.param(tree_scene(GROVE), id="trees")]
)


@every_batch_and_trees
def test_torch_padded_never_reads_the_mirror(batch: Scene) -> None:
    """With traps in place of every host length the output is the same."""
    trapped = _trapped(batch)

    output = trapped.run(TorchPadded)

    assert torch.equal(output, batch.run(TorchPadded))


@every_batch_and_trees
def test_torch_padded_never_reads_the_device(batch: Scene) -> None:
    """No operator hands a value, or a shape that follows from values, to the host."""
    with Recording() as recording:
        batch.run(TorchPadded)

    assert recording.host_reads() == []


@every_batch
@pytest.mark.parametrize("kind", [TorchNative, TorchPadded])
def test_forward_runs_where_the_device_has_no_values(
    kind: type[PagedAttention], batch: Scene
) -> None:
    """On the meta device nothing can be read back, and every shape still comes out."""
    meta = batch.on("meta")

    output = meta.run(kind)

    assert output.device.type == "meta"
    assert output.shape == batch.q.shape


def test_torch_padded_reads_trees_where_the_device_has_no_values() -> None:
    """The mask's rows are found on the device: on the meta device every shape still comes out."""
    meta = tree_scene(GROVE).on("meta")

    output = meta.run(TorchPadded)

    assert output.device.type == "meta"
    assert output.shape == meta.q.shape


@pytest.mark.parametrize(
    "read",
    [
        pytest.param(lambda lengths: int(lengths.max()), id="a number"),
        pytest.param(lambda lengths: lengths.nonzero(), id="places"),
        pytest.param(lambda lengths: lengths[lengths > 1], id="a masked selection"),
    ],
)
def test_recording_finds_host_reads(read: Callable[[Tensor], object]) -> None:
    """A length that is read is found, so that finding none means something."""
    lengths = torch.tensor([1, 2])

    with Recording() as recording:
        read(lengths)

    assert recording.host_reads() != []


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


def _trapped(batch: Scene) -> Scene:
    trap = cast("Tensor", Trap())
    return replace(
        batch,
        batch=replace(
            batch.batch, seq_lens_cpu=trap, extend_seq_lens_cpu=cast("tuple[int, ...]", Trap())
        ),
    )
