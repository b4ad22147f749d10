"""What is read of lengths on the host: upper bounds, and nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from backend_caps.kit.scenes import (
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

from .rig import EAGER, bounded

pytestmark = pytest.mark.slow

_WIDE = Setting(max_context_len=1024, num_slots=1200)
_REQUESTS = ((600, 1), (3, 1))


def test_a_batch_without_bounds_reads_whole_rows() -> None:
    """Where the host has nothing, contexts are as long as any may be."""
    batch = scene(_REQUESTS, uniform=True, setting=_WIDE)

    output = batch.run(EAGER)

    assert batch.batch.seq_lens_cpu_upper_bound is None
    torch.testing.assert_close(output.double(), reference_attention(batch), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "batch",
    [
        pytest.param(scene(PREFIXED), id="prefill"),
        pytest.param(scene(DECODE, uniform=True), id="decode"),
        pytest.param(scene(VERIFY, uniform=True), id="verify"),
        pytest.param(tree_scene(GROVE), id="trees"),
    ],
)
def test_output_does_not_depend_on_the_bounds_of_memory(
    batch: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One context after the other, and few tokens at a time, give what all together give."""
    together = batch.run(EAGER)
    monkeypatch.setattr("backend_caps_flex_attention.parts._TOKENS_AT_ONCE", 1)
    monkeypatch.setattr("backend_caps_flex_attention.parts._QUERIES_AT_ONCE", 2)

    apart = batch.run(EAGER)

    torch.testing.assert_close(apart, together, atol=1e-6, rtol=1e-6)


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


def _poisoned(tokens: Tensor) -> Tensor:
    """Make the last request's tokens, of 40, no numbers."""
    tokens = tokens.clone()
    tokens[-40:] = torch.nan
    return tokens
