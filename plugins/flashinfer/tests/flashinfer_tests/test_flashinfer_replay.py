"""What the host waits for on a device where work runs late."""

from __future__ import annotations

import pytest
import torch
from backend_caps_flashinfer import FlashInfer
from backend_caps_flashinfer.planners import DecodePlanner

from backend_caps import BatchKind
from backend_caps.kit.scenes import Requests, Setting, reference_attention, scene
from backend_caps.simulator import simulate

from .replays import replayed

pytestmark = pytest.mark.usefixtures("fake_flashinfer")

CAPTURED: dict[BatchKind, Requests] = {
    BatchKind.SINGLE_TOKEN_DECODE: ((4, 1), (0, 1), (9, 1), (2, 1)),
    BatchKind.UNIFORM_BATCH: ((4, 3), (0, 3), (9, 3), (2, 3)),
}
every_schedule = pytest.mark.parametrize("schedule", ["eager", "lazy"])


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
