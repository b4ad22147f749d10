"""What a captured forward makes of other batches: all lengths are read anew on the device."""

from __future__ import annotations

import random

import pytest
import torch
from backend_caps_flex_attention import FlexAttention
from flex_attention_caps import FLEX_ATTENTION

from backend_caps import BatchKind
from backend_caps.conformance.scenes import (
    COMB,
    FORK,
    GROVE,
    STAR,
    Requests,
    Scene,
    Setting,
    dice_of,
    random_tree,
    reference_attention,
    scene,
    tree_scene,
)
from backend_caps.conformance.simulator import simulate
from backend_caps.protocols import ForwardBatch

from .rig import bounded, capture, filled, load, roomy

CAPTURED: dict[BatchKind, tuple[Requests, bool]] = {
    BatchKind.SINGLE_TOKEN_DECODE: (((4, 1), (0, 1), (9, 1), (2, 1)), True),
    BatchKind.UNIFORM_BATCH: (((4, 3), (0, 3), (9, 3), (2, 3)), True),
    BatchKind.MIXED_BATCH: (((4, 3), (0, 4), (9, 1), (2, 4)), False),
}
_MASK_SIZE = len(GROVE) * len(FORK) * Setting().max_context_len
_WIDE = Setting(max_context_len=1024, num_slots=1200)
NUM_REPLAYS = 500


class _Baking(FlexAttention):
    """A mutant: what it captures is as wide as the bounds were at the capture."""

    def init_forward_metadata_in_graph(self, batch: ForwardBatch) -> None:
        self.init_forward_metadata(batch)


@pytest.mark.parametrize("schedule", ["eager", "lazy"])
@pytest.mark.parametrize("kind", list(CAPTURED), ids=lambda kind: kind.value)
def test_a_replay_serves_other_batches(kind: BatchKind, schedule: str) -> None:
    """One capture serves other lengths, sizes, page tables and contents, and never waits."""
    requests, uniform = CAPTURED[kind]
    whole = scene(requests, uniform=uniform)
    batches = [scene(_drawn(kind, n), uniform=uniform, setting=Setting(seed=n)) for n in range(3)]

    with simulate(schedule) as run:
        captured = whole.on("sim")
        loaded = [filled(batch, whole).on("sim") for batch in batches]
        before = len(run.hidden_syncs)
        recording, output = capture(captured)
        found = []
        for batch in loaded:
            load(captured, batch)
            recording.replay()
            found.append(output.clone())
        waits = list(run.hidden_syncs[before:])
        outputs = [own.cpu() for own in found]

    assert waits == []
    _assert_attended(batches, outputs)


@pytest.mark.parametrize("schedule", ["eager", "lazy"])
def test_a_replay_serves_other_trees(schedule: str) -> None:
    """One capture serves other trees over other contexts: a replay reads the mask anew."""
    whole = roomy(tree_scene(GROVE), _MASK_SIZE)
    replayed = [((20, STAR), (0, COMB), (3, FORK)), ((1, COMB),)]
    batches = [tree_scene(own, setting=Setting(seed=n)) for n, own in enumerate(replayed, 1)]

    with simulate(schedule):
        captured = whole.on("sim")
        recording, output = capture(captured)
        found = []
        for batch in batches:
            load(captured, roomy(filled(batch, whole), _MASK_SIZE).on("sim"))
            recording.replay()
            found.append(output.clone())
        outputs = [own.cpu() for own in found]

    _assert_attended(batches, outputs)


@pytest.mark.parametrize(
    ("kind", "is_right"),
    [
        pytest.param(FlexAttention, True, id="the backend"),
        pytest.param(_Baking, False, id="a mutant that captures by bounds"),
    ],
)
def test_a_replay_serves_contexts_longer_than_the_captured(
    kind: type[FlexAttention], *, is_right: bool
) -> None:
    """The bounds of a capture are padding's, and no width of it may follow from them."""
    whole, batch = (scene(own, uniform=True, setting=_WIDE) for own in (((1, 1),), ((600, 1),)))

    with simulate("eager"):
        captured = bounded(whole).on("sim")
        recording, output = capture(captured, kind)
        load(captured, batch.on("sim"))
        recording.replay()
        found = output.cpu().double()

    assert torch.allclose(found, reference_attention(batch), atol=1e-5) is is_right


@pytest.mark.timeout(400)
def test_five_hundred_replays_equal_the_definition() -> None:
    """Steps of trees, each of another number of requests, other contexts and other branches."""
    dice = dice_of(0)
    batches = [
        tree_scene(
            [(dice.randrange(20), random_tree(4, 2, dice)) for _ in range(dice.randint(1, 4))],
            setting=Setting(seed=n),
        )
        for n in range(NUM_REPLAYS)
    ]
    whole = roomy(tree_scene(GROVE), _MASK_SIZE)

    with simulate("eager"):
        captured = whole.on("sim")
        recording, output = capture(captured)
        outputs = []
        for batch in batches:
            load(captured, roomy(filled(batch, whole), _MASK_SIZE).on("sim"))
            recording.replay()
            outputs.append(output.cpu())

    _assert_attended(batches, outputs)


def test_the_declared_replays_are_those_that_are_tried() -> None:
    """The kinds of batch that are declared are those that are tried above."""
    tried = frozenset(CAPTURED)

    declared = FLEX_ATTENTION.capabilities.graph_replay

    assert declared == tried


def _drawn(kind: BatchKind, seed: int) -> Requests:
    """Draw up to 4 requests, and as many tokens as were captured at most."""
    dice = random.Random(seed)  # noqa: S311 - no secrets
    counts = {BatchKind.SINGLE_TOKEN_DECODE: 1, BatchKind.UNIFORM_BATCH: 3}
    return [
        (dice.randrange(20), counts.get(kind) or dice.randint(1, 3))
        for _ in range(dice.randint(1, 4))
    ]


def _assert_attended(batches: list[Scene], outputs: list[torch.Tensor]) -> None:
    """Compare each output, as far as its batch goes, with what attention is."""
    for batch, output in zip(batches, outputs, strict=True):
        own = output[: len(batch.q)].double()
        torch.testing.assert_close(own, reference_attention(batch), atol=1e-5, rtol=1e-5)
