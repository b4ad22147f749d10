"""A few steps through a FutureMap, in every mode."""

from __future__ import annotations

from itertools import pairwise

import pytest

from backend_caps.capability.vocabulary import HostSeqLens
from backend_caps.relay import DraftShape, FutureMap
from backend_caps.report.plans import StepDocument
from backend_caps.startup.rehearsal import rehearse

DRAFT = DraftShape(topk=2, accept_tokens=3)


def _steps(mode: HostSeqLens, *, speculative: bool = True) -> list[StepDocument]:
    draft = DRAFT if speculative else None
    future_map = FutureMap(
        pool_size=8,
        device="cpu",
        host_seq_lens=mode,
        speculative=speculative,
        draft=draft,
        debug=True,
    )
    return list(rehearse(future_map, num_steps=4, draft=draft))


@pytest.mark.parametrize("mode", list(HostSeqLens))
def test_rehearsal_accepts_what_a_step_can(mode: HostSeqLens) -> None:
    """From the prompts on, each length grows by one to the most that a step accepts."""
    steps = _steps(mode)

    grown = {
        later - earlier
        for before, after in pairwise(steps)
        for earlier, later in zip(before.seq_lens, after.seq_lens, strict=True)
    }
    assert steps[0].seq_lens == [5, 3, 7]
    assert grown <= {1, 2, 3}


def test_rehearsal_without_speculation_adds_one() -> None:
    """Each step adds one token, on the device and in the mirror, from those stashed before."""
    steps = _steps(HostSeqLens.NONE, speculative=False)

    assert [step.seq_lens for step in steps] == [[5, 3, 7], [6, 4, 8], [7, 5, 9], [8, 6, 10]]
    assert [step.seq_lens_cpu for step in steps] == [step.seq_lens for step in steps]
    assert {step.bytes_to_host for step in steps} == {0}
    assert all(100 <= token < 1000 for step in steps for token in step.input_ids)
    assert len({tuple(step.input_ids) for step in steps}) == len(steps)


def test_rehearsal_mirrors_exactly() -> None:
    """With exact lengths the mirror is the device's lengths, and they cross."""
    steps = _steps(HostSeqLens.EXACT)

    assert [step.seq_lens_cpu for step in steps] == [step.seq_lens for step in steps]
    assert {step.bytes_to_host for step in steps} == {24}


def test_rehearsal_bounds_from_above() -> None:
    """With upper bounds no length is above its bound, and nothing crosses."""
    steps = _steps(HostSeqLens.UPPER_BOUND)

    bounds = [step.seq_lens_cpu_upper_bound or () for step in steps]
    lengths = [step.seq_lens for step in steps]
    assert all(
        low <= high
        for of_step, bound in zip(lengths, bounds, strict=True)
        for low, high in zip(of_step, bound, strict=True)
    )
    assert {step.bytes_to_host for step in steps} == {0}
