"""The GPU benchmark's comparison of attention, rehearsed on the CPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from benchmarks.attention import REHEARSAL, Row, compared, uses

CPU = torch.device("cpu")


pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    """Rehearse one size."""
    return compared(CPU, replace(REHEARSAL, rounds=1), 1e9, batch_size=2, length=32)


def test_rehearsal_has_every_backend(rows: list[Row]) -> None:
    """Torch's own attention and every installed backend stand side by side."""
    sides = sorted(row.side for row in rows)

    assert sides == sorted(["sdpa, plain order", *(use.backend for use in uses())])


def test_rehearsal_times_what_runs_and_says_why_the_rest_does_not(rows: list[Row]) -> None:
    """Each row has a time and its share of the limit, or a reason."""
    timed = {row.side for row in rows if row.step_us is not None and row.of_limit is not None}

    assert timed >= {"sdpa, plain order", "torch_native", "torch_padded"}
    assert all(row.reason for row in rows if row.side not in timed)


def test_share_of_the_limit_is_of_all_keys_and_values(rows: list[Row]) -> None:
    """At 1 GB/s the limit is a nanosecond for each byte of the contexts' keys and values."""
    row = next(own for own in rows if own.side == "torch_padded")
    layer = REHEARSAL.layer
    num_bytes = 2 * 32 * layer.tp_k_head_num * 2 * layer.qk_head_dim * 2

    assert row.step_us is not None
    assert row.of_limit == pytest.approx(num_bytes / 1e3 / row.step_us)
