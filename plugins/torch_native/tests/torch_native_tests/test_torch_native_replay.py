from __future__ import annotations

from dataclasses import fields, replace

import pytest
import torch
from backend_caps_torch_native import TorchNative, TorchPadded
from backend_caps_torch_native.paged import PagedAttention
from torch import Tensor
from torch_native_caps import TORCH_PADDED

from backend_caps import BatchKind
from backend_caps.conformance.scenes import (
    CHAIN,
    COMB,
    FORK,
    GROVE,
    STAR,
    Pools,
    Requests,
    Scene,
    Setting,
    padded,
    scene,
    tree_scene,
)
from backend_caps.conformance.simulator import simulate
from backend_caps.conformance.simulator.graphs import CUDAGraph, graph
from backend_caps.runtime.forward_batch import ForwardBatch

from .watch import Recording

CAPTURED: dict[BatchKind, tuple[Requests, bool]] = {
    BatchKind.SINGLE_TOKEN_DECODE: (((4, 1), (0, 1), (9, 1), (2, 1)), True),
    BatchKind.UNIFORM_BATCH: (((4, 3), (0, 3), (9, 3), (2, 3)), True),
    BatchKind.MIXED_BATCH: (((4, 3), (0, 4), (9, 1), (2, 4)), False),
}
REPLAYED: dict[BatchKind, tuple[Requests, ...]] = {
    BatchKind.SINGLE_TOKEN_DECODE: (((20, 1), (1, 1), (3, 1)), ((0, 1),), ((7, 1),) * 4),
    BatchKind.UNIFORM_BATCH: (((20, 3), (1, 3), (3, 3)), ((0, 3),), ((7, 3),) * 4),
    BatchKind.MIXED_BATCH: (((11, 1), (0, 9)), ((20, 3), (1, 3), (3, 1)), ((0, 12),)),
}
CAPTURED_TREES = GROVE
REPLAYED_TREES = (
    ((20, STAR), (0, COMB), (3, FORK)),
    ((1, COMB),),
    ((7, CHAIN), (7, STAR), (0, FORK), (20, COMB)),
)


@pytest.mark.parametrize("kind", list(CAPTURED), ids=lambda kind: kind.value)
def test_torch_padded_replays_other_batches(kind: BatchKind) -> None:
    """One capture serves batches of other lengths, sizes, places and contents, with no host code.

    Metadata is rebuilt by the replay itself.
    """
    requests, uniform = CAPTURED[kind]
    captured = scene(requests, uniform=uniform)
    recording, output = _capture(TorchPadded, captured)

    for seed, replayed in enumerate(REPLAYED[kind], start=1):
        batch = scene(replayed, uniform=uniform, setting=Setting(seed=seed))
        _load(captured, _filled(batch, captured))
        recording.replay()

        eager = batch.run(TorchPadded)
        torch.testing.assert_close(output[: len(batch.q)], eager, atol=1e-6, rtol=1e-6)


def test_torch_padded_replays_other_trees() -> None:
    """One capture serves other trees over other contexts: a replay reads the mask anew.

    The mask's size is the capture's, and has room for the longest contexts.
    """
    captured = _roomy(tree_scene(CAPTURED_TREES))
    recording, output = _capture(TorchPadded, captured)

    for seed, replayed in enumerate(REPLAYED_TREES, start=1):
        batch = tree_scene(replayed, setting=Setting(seed=seed))
        _load(captured, _roomy(_filled(batch, captured)))
        recording.replay()

        eager = batch.run(TorchPadded)
        torch.testing.assert_close(output[: len(batch.q)], eager, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("schedule", ["eager", "lazy"])
def test_torch_padded_replays_trees_on_a_device(schedule: str) -> None:
    """A device's own graph holds the attention, and neither its capture nor a replay waits."""
    batch = tree_scene(REPLAYED_TREES[0], setting=Setting(seed=1))

    with simulate(schedule) as run:
        captured = _roomy(tree_scene(CAPTURED_TREES)).on("sim")
        loaded = _roomy(_filled(batch, captured)).on("sim")
        num_loading = len(run.hidden_syncs)
        recording, output = _capture_on_device(captured)
        _load(captured, loaded)
        recording.replay()
        num_syncs = len(run.hidden_syncs) - num_loading
        found = output[: len(batch.q)].cpu()

    assert num_syncs == 0
    torch.testing.assert_close(found, batch.run(TorchPadded), atol=1e-6, rtol=1e-6)


def test_torch_padded_declares_what_it_replays() -> None:
    """The kinds of batch that are declared are those that are tried above."""
    tried = frozenset(CAPTURED)

    declared = TORCH_PADDED.capabilities.graph_replay

    assert declared == tried


def test_torch_native_does_not_replay() -> None:
    """Its slices are host values, which a replay keeps: that is why it declares no replay."""
    captured = scene(CAPTURED[BatchKind.SINGLE_TOKEN_DECODE][0], uniform=True)
    recording, output = _capture(TorchNative, captured)
    batch = scene(((20, 1), (1, 1), (3, 1), (5, 1)), uniform=True, setting=Setting(seed=1))

    _load(captured, batch)
    recording.replay()

    assert not torch.equal(output, batch.run(TorchNative))


def _capture(kind: type[PagedAttention], batch: Scene) -> tuple[Recording, Tensor]:
    backend = kind(batch.pools)
    backend.init_forward_metadata_out_graph(batch.batch)
    with Recording() as recording:
        backend.init_forward_metadata_in_graph(batch.batch)
        output = batch.forward(backend)
    return recording, output


def _capture_on_device(batch: Scene) -> tuple[CUDAGraph, Tensor]:
    with graph(recording := CUDAGraph()):
        output = batch.run(TorchPadded)
    return recording, output


def _filled(batch: Scene, captured: Scene) -> Scene:
    """Pad a batch to a capture's sizes."""
    rows, tokens = len(captured.counts) - len(batch.counts), len(captured.q) - len(batch.q)
    return padded(batch, rows=rows, tokens=tokens)


def _roomy(trees: Scene) -> Scene:
    """Give a batch of trees the mask of a graph's buffer, with room for the longest contexts."""
    assert trees.batch.tree_mask is not None
    used = trees.batch.tree_mask
    mask = torch.ones(len(CAPTURED_TREES) * len(FORK) * Setting().max_context_len, dtype=torch.bool)
    mask[: len(used)] = used
    return replace(trees, batch=replace(trees.batch, tree_mask=mask))


def _load(captured: Scene, batch: Scene) -> None:
    """Copy a batch and its pools into the tensors that a capture reads."""
    for static, fresh in (
        (captured.pools, batch.pools),
        (captured.batch, batch.batch),
        (captured, batch),
    ):
        for name in _tensors(static):
            getattr(static, name).copy_(getattr(fresh, name))


def _tensors(holder: Pools | ForwardBatch | Scene) -> list[str]:
    names = [field.name for field in fields(holder)]
    return [name for name in names if isinstance(getattr(holder, name), Tensor)]
