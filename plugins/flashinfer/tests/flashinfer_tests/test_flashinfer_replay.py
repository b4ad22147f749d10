"""Captures on a device where work runs late, and replays that follow later batches."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
import torch
from backend_caps_flashinfer import FlashInfer
from backend_caps_flashinfer.planners import DecodePlanner
from flashinfer_caps import FLASHINFER
from torch import Tensor

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
    reference_attention,
    scene,
    tree_scene,
)
from backend_caps.conformance.simulator import simulate
from backend_caps.conformance.simulator.graphs import CUDAGraph, graph
from backend_caps.runtime.forward_batch import ForwardBatch

pytestmark = pytest.mark.usefixtures("fake_flashinfer")

CAPTURED: dict[BatchKind, Requests] = {
    BatchKind.SINGLE_TOKEN_DECODE: ((4, 1), (0, 1), (9, 1), (2, 1)),
    BatchKind.UNIFORM_BATCH: ((4, 3), (0, 3), (9, 3), (2, 3)),
}
REPLAYED: dict[BatchKind, tuple[Requests, ...]] = {
    BatchKind.SINGLE_TOKEN_DECODE: (((20, 1), (1, 1), (3, 1)), ((0, 1),), ((7, 1),) * 4),
    BatchKind.UNIFORM_BATCH: (((20, 3), (1, 3), (3, 3)), ((0, 3),), ((7, 3),) * 4),
}
REPLAYED_TREES = (
    ((20, STAR), (0, COMB), (3, FORK)),
    ((1, COMB),),
    ((7, CHAIN), (7, STAR), (0, FORK), (20, COMB)),
)
every_schedule = pytest.mark.parametrize("schedule", ["eager", "lazy"])


@every_schedule
@pytest.mark.parametrize("kind", list(CAPTURED), ids=lambda kind: kind.value)
def test_replays_follow_their_batches(kind: BatchKind, schedule: str) -> None:
    """One capture serves batches of other lengths, sizes, places and contents."""
    captured = scene(CAPTURED[kind], uniform=True)
    batches = [
        scene(requests, uniform=True, setting=Setting(seed=seed))
        for seed, requests in enumerate(REPLAYED[kind], start=1)
    ]

    outputs = _replayed(captured, batches, schedule)

    for output, batch in zip(outputs, batches, strict=True):
        expected = reference_attention(batch)
        torch.testing.assert_close(output.double(), expected, atol=1e-5, rtol=1e-5)


@every_schedule
def test_replays_follow_their_trees(schedule: str) -> None:
    """One capture serves other trees over other contexts: each plan packs its own mask."""
    captured = _roomy(tree_scene(GROVE))
    batches = [
        tree_scene(trees, setting=Setting(seed=seed))
        for seed, trees in enumerate(REPLAYED_TREES, start=1)
    ]

    outputs = _replayed(captured, batches, schedule)

    for output, batch in zip(outputs, batches, strict=True):
        expected = reference_attention(batch)
        torch.testing.assert_close(output.double(), expected, atol=1e-5, rtol=1e-5)


def test_replays_of_five_hundred_steps_equal_eager_forwards() -> None:
    """A request a batch grows from step to step, and others come and go: no replay falls behind."""
    steps = [[((step + row) % 21, 1) for row in range(1 + step % 4)] for step in range(500)]
    batches = [
        scene(requests, uniform=True, setting=Setting(seed=seed))
        for seed, requests in enumerate(steps)
    ]

    outputs = _replayed(scene(CAPTURED[BatchKind.SINGLE_TOKEN_DECODE], uniform=True), batches)

    eager = [batch.run(FlashInfer) for batch in batches]
    torch.testing.assert_close(torch.cat(outputs), torch.cat(eager), atol=1e-6, rtol=1e-6)


def test_a_plan_waits_until_the_last_one_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packed over the last plan before the device has it, that one's kernels follow the next."""
    batches = [
        scene(requests, uniform=True, setting=Setting(seed=seed))
        for seed, requests in enumerate((((20, 1),) * 4, ((1, 1),) * 4), start=1)
    ]
    monkeypatch.setattr(DecodePlanner, "plan", DecodePlanner._plan)  # noqa: SLF001 - a mutant

    outputs = _replayed(scene(CAPTURED[BatchKind.SINGLE_TOKEN_DECODE], uniform=True), batches)

    assert not torch.allclose(outputs[0].double(), reference_attention(batches[0]))


@every_schedule
@pytest.mark.parametrize("kind", list(CAPTURED), ids=lambda kind: kind.value)
def test_eager_batches_wait_for_nothing_but_the_last_plan(kind: BatchKind, schedule: str) -> None:
    """Without a mask nothing of a plan is read back, and no copy makes the host wait."""
    batch = scene(CAPTURED[kind], uniform=True)

    with simulate(schedule) as run:
        on_device = batch.on("sim")
        num_loading = len(run.hidden_syncs)
        backend = FlashInfer(on_device.pools)
        for _ in range(3):
            backend.init_forward_metadata(on_device.batch)
            output = on_device.forward(backend)
        num_syncs = len(run.hidden_syncs) - num_loading
        found = output.cpu()

    assert num_syncs == 0
    torch.testing.assert_close(found, batch.run(FlashInfer), atol=1e-6, rtol=1e-6)


def test_declared_kinds_are_those_that_are_replayed_here() -> None:
    """The kinds of batch that are declared are those that are tried above."""
    tried = frozenset(CAPTURED)

    declared = FLASHINFER.capabilities.graph_replay

    assert declared == tried


def _replayed(captured: Scene, batches: list[Scene], schedule: str = "lazy") -> list[Tensor]:
    """Capture once, replay every batch, and read what came out when all are enqueued."""
    with simulate(schedule):
        static = captured.on("sim")
        loaded = [_like(_filled(batch, captured), captured).on("sim") for batch in batches]
        backend = FlashInfer(static.pools)
        backend.init_cuda_graph_state(len(static.counts), len(static.q))
        backend.init_forward_metadata_out_graph(static.batch)
        backend.init_forward_metadata_in_graph(static.batch)
        static.forward(backend)
        backend.init_forward_metadata_out_graph(static.batch)
        with graph(recording := CUDAGraph()):
            backend.init_forward_metadata_in_graph(static.batch)
            output = static.forward(backend)
        outputs = []
        for batch, fresh in zip(batches, loaded, strict=True):
            _load(static, fresh)
            backend.init_forward_metadata_out_graph(_on_static(static.batch, fresh.batch))
            recording.replay()
            outputs.append(output[: len(batch.q)].clone())
        return [own.cpu() for own in outputs]


def _on_static(static: ForwardBatch, batch: ForwardBatch) -> ForwardBatch:
    """Give a capture's tensors the host lengths of the batch that was loaded into them."""
    return replace(static, seq_lens_cpu=batch.seq_lens_cpu, seq_lens_sum=batch.seq_lens_sum)


def _filled(batch: Scene, captured: Scene) -> Scene:
    """Pad a batch to a capture's sizes, with requests of no length as a graph runner does."""
    rows, tokens = len(captured.counts) - len(batch.counts), len(captured.q) - len(batch.q)
    filled = padded(batch, rows=rows, tokens=tokens)
    for lengths in (filled.batch.seq_lens, filled.batch.seq_lens_cpu):
        assert lengths is not None
        lengths[len(batch.counts) :] = 0
    return filled


def _like(batch: Scene, captured: Scene) -> Scene:
    return batch if captured.batch.tree_mask is None else _roomy(batch)


def _roomy(trees: Scene) -> Scene:
    """Give a batch of trees the mask of a graph's buffer, with room for the longest contexts."""
    assert trees.batch.tree_mask is not None
    used = trees.batch.tree_mask
    mask = torch.ones(len(GROVE) * len(FORK) * Setting().max_context_len, dtype=torch.bool)
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
    """Name what is on the device; host lengths are handed over beside it."""
    names = [field.name for field in fields(holder) if field.name != "seq_lens_cpu"]
    return [name for name in names if isinstance(getattr(holder, name), Tensor)]
