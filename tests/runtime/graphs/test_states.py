"""The states of a target, captured without its LM head: the verify of a speculative step."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor

from backend_caps import BatchKind, HostSeqLens, Phase, SharedReadsEnd
from backend_caps.relay import DeviceStreams
from backend_caps.runtime.attention import ForwardContext
from backend_caps.runtime.batch import ForwardMode
from backend_caps.runtime.forward_batch import ForwardBatch
from backend_caps.runtime.graphs.runner import Computed, GraphRunner
from backend_caps.runtime.step import TargetRunner, states_of
from backend_caps.startup.graph_modes import GraphMode
from tests.runtime.graphs.rig import BUCKETS, DRAFTS, MAX_CONTEXT_LEN, Rig
from tests.runtime.two_batches import World

UNIFORM = BatchKind.UNIFORM_BATCH
MASK_SIZE = BUCKETS[UNIFORM][-1].batch_size * DRAFTS * MAX_CONTEXT_LEN
LENGTHS = (4, 0, 21, 9)


def _captured(rig: Rig) -> TargetRunner:
    """Capture a rig's model, and run verifies by its graphs."""
    runner = GraphRunner(
        partial(states_of, rig.model),
        rig.backend,
        rig.place,
        buckets=BUCKETS[UNIFORM],
        buffers=rig.buffers,
        host_seq_lens=HostSeqLens.NONE,
        shared_reads_end=SharedReadsEnd.POST_REPLAY,
    )
    with rig.streams.using(rig.stream):
        world = World(rig.streams.device)
    return TargetRunner(rig.model, world.backends(), {Phase.VERIFY: runner})


def _eager_states(rig: Rig, batch: ForwardBatch) -> Tensor:
    """Compute a batch's states without a graph, and leave the KV cache as it was."""
    with rig.streams.using(rig.stream):
        before = [buffer.clone() for buffer in rig.site.keys_and_values()]
        rig.backend.init_forward_metadata(batch)
        context = ForwardContext(rig.backend, batch)
        states = rig.model.hidden_states(batch.input_ids, batch.positions, context)
        for buffer, old in zip(rig.site.keys_and_values(), before, strict=True):
            buffer.copy_(old)
    return rig.on_host(states)


def _run(rig: Rig, target: TargetRunner, batch: ForwardBatch) -> Computed:
    with rig.streams.using(rig.stream):
        return target.hidden_states(batch)


@pytest.mark.parametrize("is_tree", [True, False], ids=["tree", "chain"])
def test_replayed_states_are_the_eager_ones(is_tree: bool, streams: DeviceStreams) -> None:
    """A graph of the states has a row for each token, padding aside, and says that it ran."""
    rig = Rig(streams, BUCKETS[UNIFORM], mask_size=MASK_SIZE if is_tree else 0)
    target = _captured(rig)
    batch = replace(rig.tree_batch(LENGTHS[:3]), mode=ForwardMode.VERIFY)
    if not is_tree:
        batch.tree_mask = None
    eager = _eager_states(rig, batch)

    hidden = _run(rig, target, batch)

    torch.testing.assert_close(rig.on_host(hidden.output), eager, atol=1e-4, rtol=1e-4)
    assert hidden.graph_mode is GraphMode.FULL
    assert hidden.reads_done is not None


@pytest.mark.parametrize(
    ("phase", "batch_size", "expected"),
    [
        pytest.param(Phase.VERIFY, 4, MASK_SIZE, id="what a graph holds"),
        pytest.param(Phase.VERIFY, 5, None, id="more than a graph holds"),
        pytest.param(Phase.DECODE, 1, None, id="a phase without graphs"),
    ],
)
def test_memory_for_masks_is_that_of_the_phase(
    phase: Phase, batch_size: int, expected: int | None, streams: DeviceStreams
) -> None:
    """Where a graph will read the mask, it is made in the graph's memory."""
    target = _captured(Rig(streams, BUCKETS[UNIFORM], mask_size=MASK_SIZE))

    (buffer,) = target.mask_buffers(phase, batch_size)

    assert (None if buffer is None else buffer.numel()) == expected
