"""Captures on a device where work runs late, and replays that follow later batches."""

from __future__ import annotations

import pytest
import torch
from backend_caps_flashinfer import FlashInfer
from backend_caps_flashinfer.planners import DecodePlanner
from flashinfer_caps import FLASHINFER

from backend_caps import BatchKind
from backend_caps.conformance.scenes import (
    CHAIN,
    COMB,
    FORK,
    GROVE,
    STAR,
    Requests,
    Setting,
    reference_attention,
    scene,
    tree_scene,
)
from backend_caps.conformance.simulator import simulate

from .replaying import replayed, roomy

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

    with simulate(schedule):
        outputs = replayed(captured, batches, "sim")

    for output, batch in zip(outputs, batches, strict=True):
        expected = reference_attention(batch)
        torch.testing.assert_close(output.double(), expected, atol=1e-5, rtol=1e-5)


@every_schedule
def test_replays_follow_their_trees(schedule: str) -> None:
    """One capture serves other trees over other contexts: each plan packs its own mask."""
    captured = roomy(tree_scene(GROVE))
    batches = [
        tree_scene(trees, setting=Setting(seed=seed))
        for seed, trees in enumerate(REPLAYED_TREES, start=1)
    ]

    with simulate(schedule):
        outputs = replayed(captured, batches, "sim")

    for output, batch in zip(outputs, batches, strict=True):
        expected = reference_attention(batch)
        torch.testing.assert_close(output.double(), expected, atol=1e-5, rtol=1e-5)


def test_replays_of_five_hundred_steps_equal_eager_forwards() -> None:
    """A request a batch grows from step to step, and others come and go: no replay falls behind."""
    steps = [[((step + row) % 21, 1) for row in range(1 + step % 4)] for step in range(500)]
    captured = scene(CAPTURED[BatchKind.SINGLE_TOKEN_DECODE], uniform=True)
    batches = [
        scene(requests, uniform=True, setting=Setting(seed=seed))
        for seed, requests in enumerate(steps)
    ]

    with simulate("lazy"):
        outputs = replayed(captured, batches, "sim")

    eager = [batch.run(FlashInfer) for batch in batches]
    torch.testing.assert_close(torch.cat(outputs), torch.cat(eager), atol=1e-6, rtol=1e-6)


def test_a_plan_waits_until_the_last_one_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packed over the last plan before the device has it, that one's kernels follow the next."""
    captured = scene(CAPTURED[BatchKind.SINGLE_TOKEN_DECODE], uniform=True)
    batches = [
        scene(requests, uniform=True, setting=Setting(seed=seed))
        for seed, requests in enumerate((((20, 1),) * 4, ((1, 1),) * 4), start=1)
    ]
    monkeypatch.setattr(DecodePlanner, "plan", DecodePlanner._plan)  # noqa: SLF001 - a mutant

    with simulate("lazy"):
        outputs = replayed(captured, batches, "sim")

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
