"""What is read of lengths on the host: upper bounds, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import Never, cast

import pytest
import torch
from torch import Tensor

from backend_caps.conformance.scenes import (
    DECODE,
    GROVE,
    PREFIXED,
    VERIFY,
    Scene,
    Setting,
    reference_attention,
    scene,
    tree_scene,
)
from backend_caps.conformance.simulator import simulate

from .rig import EAGER, bounded

every_batch = pytest.mark.parametrize(
    "batch",
    [
        pytest.param(scene(PREFIXED), id="prefill"),
        pytest.param(scene(DECODE, uniform=True), id="decode"),
        pytest.param(scene(VERIFY, uniform=True), id="verify"),
        pytest.param(tree_scene(GROVE), id="trees"),
    ],
)
_WIDE = Setting(max_context_len=1024, num_slots=1200)
_REQUESTS = ((600, 1), (3, 1))


@pytest.mark.parametrize("slack", [0, 1, 300, 5000])
def test_loose_bounds_change_nothing(slack: int) -> None:
    """A bound above the length, even above the longest context, gives what the length gives."""
    batch = scene(_REQUESTS, uniform=True, setting=_WIDE)

    output = bounded(batch, slack=slack).run(EAGER)

    torch.testing.assert_close(output.double(), reference_attention(batch), atol=1e-5, rtol=1e-5)


def test_a_batch_without_bounds_reads_whole_rows() -> None:
    """Where the host has nothing, contexts are as long as any may be."""
    batch = scene(_REQUESTS, uniform=True, setting=_WIDE)

    output = batch.run(EAGER)

    assert batch.batch.seq_lens_cpu_upper_bound is None
    torch.testing.assert_close(output.double(), reference_attention(batch), atol=1e-5, rtol=1e-5)


def test_bounds_below_the_truth_cut_contexts_off() -> None:
    """Bounds are read: 600 tokens behind a bound of 256 are not attended to."""
    batch = scene(_REQUESTS, uniform=True, setting=_WIDE)

    output = bounded(batch, slack=256 - 601).run(EAGER)

    assert not torch.allclose(output[0].double(), reference_attention(batch)[0], atol=1e-3)


def test_bounds_below_the_truth_show_nothing_of_others() -> None:
    """A context that is cut off ends there, and not in the next request's."""
    batch = scene(((0, 40), (600, 3), (0, 40)), setting=_WIDE)
    wrong = bounded(batch, slack=256 - 603)
    nobody = torch.tensor([], dtype=torch.int64)
    rows = batch.batch.req_pool_indices[2:]
    slots = batch.pools.req_to_token[rows, :40].long() if len(rows) else nobody
    output = wrong.run(EAGER)

    batch.pools.keys[slots] = torch.nan
    batch.pools.values[slots] = torch.nan
    again = replace(wrong, k=_poisoned(wrong.k), v=_poisoned(wrong.v)).run(EAGER)

    assert torch.equal(again[40:43], output[40:43])


@every_batch
def test_host_lengths_are_never_read(batch: Scene) -> None:
    """With traps in place of every exact length the output is the same."""
    relayed = bounded(batch)
    trap = cast("Tensor", _Trap())
    trapped = replace(
        relayed,
        batch=replace(
            relayed.batch, seq_lens_cpu=trap, extend_seq_lens_cpu=cast("tuple[int, ...]", _Trap())
        ),
    )

    output = trapped.run(EAGER)

    assert torch.equal(output, relayed.run(EAGER))


@every_batch
@pytest.mark.parametrize("schedule", ["eager", "lazy"])
def test_nothing_is_read_back_from_the_device(batch: Scene, schedule: str) -> None:
    """On a device whose work is late, preparing and attending wait for nothing."""
    with simulate(schedule) as run:
        there = bounded(batch).on("sim")
        before = len(run.hidden_syncs)
        output = there.run(EAGER)
        waits = run.hidden_syncs[before:]
        found = output.cpu()

    assert list(waits) == []
    torch.testing.assert_close(found.double(), reference_attention(batch), atol=1e-5, rtol=1e-5)


@every_batch
def test_forward_runs_where_the_device_has_no_values(batch: Scene) -> None:
    """On the meta device nothing can be read back, and every shape still comes out."""
    meta = bounded(batch).on("meta")

    output = meta.run(EAGER)

    assert output.device.type == "meta"
    assert output.shape == meta.q.shape


class _Trap:
    """Stands for lengths that must not be read."""

    def __getattribute__(self, name: str) -> Never:
        raise AssertionError(f"read the mirror: {name}")


def _poisoned(tokens: Tensor) -> Tensor:
    """Make the last request's tokens, of 40, no numbers."""
    tokens = tokens.clone()
    tokens[-40:] = torch.nan
    return tokens
