"""Forwards of the target in speculative steps: all of a model but its LM head."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch

from backend_caps import Phase
from backend_caps.runtime.batch import ForwardMode
from backend_caps.runtime.forward_batch import ForwardBatch
from backend_caps.runtime.graphs.runner import GraphRunner
from backend_caps.runtime.step import TargetRunner
from backend_caps.startup.graph_modes import GraphMode
from tests.runtime.two_batches import World


def _verify(world: World) -> ForwardBatch:
    """Make a verify of chains."""
    return world.batch(ForwardMode.VERIFY, [(cached, 3) for cached in (4, 0, 19, 9)])


@pytest.mark.parametrize("mode", [ForwardMode.VERIFY, ForwardMode.EXTEND])
def test_states_are_those_of_the_whole_model(mode: ForwardMode) -> None:
    """Without a graph each token has its state, whatever the step is."""
    world, other = World("cpu"), World("cpu")
    target = TargetRunner(world.model, world.backends(), {})
    batch = world.batch(mode, [(4, 2), (0, 2), (9, 2)])

    hidden = target.hidden_states(batch)

    assert torch.equal(hidden.output, other.whole(batch))
    assert (hidden.reads_done, hidden.graph_mode) == (None, GraphMode.EAGER)


def test_states_of_halves_are_those_of_the_whole() -> None:
    """Under two-batch overlap the halves are joined in the batch's order."""
    world, other = World("cpu"), World("cpu")
    target = TargetRunner(world.model, world.backends(), {}, world.runner())
    batch = _verify(world)

    hidden = target.hidden_states(batch)

    torch.testing.assert_close(hidden.output, other.whole(batch), atol=1e-5, rtol=1e-5)
    assert hidden.graph_mode is GraphMode.EAGER


@pytest.mark.parametrize(("batch_size", "expected"), [(1, (None,)), (2, (None, None))])
def test_target_asks_for_a_mask_of_each_half_that_it_runs(
    batch_size: int, expected: tuple[None, ...]
) -> None:
    """An eager verify in halves takes two masks, and one request's takes one."""
    world = World("cpu")
    graphs: Mapping[Phase, GraphRunner] = {}

    target = TargetRunner(world.model, world.backends(), graphs, world.runner())

    assert target.mask_buffers(Phase.VERIFY, batch_size) == expected
