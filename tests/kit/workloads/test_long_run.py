from __future__ import annotations

from typing import ClassVar

import pytest
import torch
from torch import Tensor

from backend_caps.kit import Forward, Rig, Scenario
from backend_caps.kit.workloads.long_run import SteadyRun
from backend_caps.runtime.forward_batch import ForwardBatch
from backend_caps.runtime.layer import AttentionLayer
from tests.kit.liars.liar import subject_of
from tests.kit.liars.padded import Padded
from tests.kit.made import HONEST, SCENARIO

SEEN: list[ForwardBatch] = []


class Noting(Padded):
    """Notes every batch."""

    def seen(self, batch: ForwardBatch) -> ForwardBatch:
        """Note it."""
        SEEN.append(batch)
        return batch


class Remembering(Padded):
    """Remembers every output."""

    outputs: ClassVar[list[Tensor]] = []

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        layer: AttentionLayer,
        batch: ForwardBatch,
        *,
        save_kv_cache: bool = True,
    ) -> Tensor:
        """Remember it."""
        self.outputs.append(super().forward(q, k, v, layer, batch, save_kv_cache=save_kv_cache))
        return self.outputs[-1]


def _noted(num_steps: int, scenario: Scenario = SCENARIO, *, settle: bool = False) -> list[str]:
    """Run some steps, and say of each batch its mode, rows and lengths."""
    SEEN.clear()
    rig = Rig(subject=subject_of(Noting), device="cpu")
    with rig.running():
        run = SteadyRun(rig, scenario, 0)
        run.run(num_steps)
        if settle:
            SEEN.clear()
            run.settle()
    return [
        f"{batch.mode.value} {batch.req_pool_indices.tolist()} {batch.seq_lens.tolist()}"
        for batch in SEEN
    ]


def test_a_round_has_every_shape() -> None:
    """Each forward, batch size and longest context comes once before any comes again."""
    rig = Rig(subject=HONEST, device="cpu")
    with rig.running():
        shapes = SteadyRun(rig, SCENARIO, 0).shapes
    _noted(len(shapes))

    found = {(own.mode, own.batch_size, int(own.seq_lens.max())) for own in SEEN}
    assert len(found) == len(shapes) == 48


def test_steps_of_a_seed_are_the_same() -> None:
    """A run can be repeated."""
    assert _noted(9) == _noted(9)


def test_batches_of_a_round_differ_from_those_of_the_next() -> None:
    """No two batches of several requests have the same lengths in the same rows for long."""
    noted = _noted(192)

    assert len(set(noted)) > 140


def test_settling_is_the_same_behind_any_steps() -> None:
    """What is measured is measured behind the same batches."""
    assert _noted(3, settle=True) == _noted(50, settle=True)


@pytest.mark.parametrize("page_size", [1, 16])
def test_slots_of_new_tokens_are_their_rows(page_size: int) -> None:
    """New tokens go where the page table has the ends of their contexts, never to page 0."""
    _noted(48, Scenario(forward=Forward.DECODE, page_size=page_size))

    slots = torch.cat([own.out_cache_loc for own in SEEN])
    assert int(slots.min()) >= page_size
    assert all(len({*own.out_cache_loc.tolist()}) == own.num_tokens for own in SEEN)


@pytest.mark.parametrize("device", ["sim", "cpu"])
def test_outputs_are_finite(device: str) -> None:
    """Whatever a step attends to is there."""
    rig, outputs = Rig(subject=subject_of(Remembering), device=device), Remembering.outputs
    outputs.clear()
    with rig.running():
        SteadyRun(rig, SCENARIO, 1).run(12)
        are_finite = [bool(own.isfinite().all()) for own in outputs]

    assert are_finite == [True] * 12
