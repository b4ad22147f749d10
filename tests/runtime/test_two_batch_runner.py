"""A model over two halves of a batch is the model over the batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch

from backend_caps import Phase
from backend_caps.relay import DeviceStreams
from backend_caps.runtime.batch import ForwardMode
from backend_caps.runtime.forward_batch import ForwardBatch
from backend_caps.runtime.two_batch import TwoBatchRunner
from backend_caps.simulator import simulate
from tests.runtime.graphs.rig import CONFIG, Requests
from tests.runtime.two_batches import Call, Noted, World

BATCHES = [
    pytest.param(ForwardMode.DECODE, ((5, 1), (0, 1), (11, 1), (7, 1)), id="decode"),
    pytest.param(ForwardMode.DECODE, ((5, 1), (9, 1), (0, 1)), id="decode of three"),
    pytest.param(ForwardMode.EXTEND, ((0, 9), (4, 3), (0, 1), (8, 8), (2, 5)), id="prefill"),
    pytest.param(ForwardMode.MIXED, ((0, 7), (3, 2), (9, 1), (2, 1), (20, 1)), id="mixed"),
    pytest.param(ForwardMode.VERIFY, ((5, 3), (0, 3), (11, 3)), id="verify of chains"),
    pytest.param(ForwardMode.DRAFT_EXTEND, ((5, 4), (0, 4)), id="draft-extend"),
]
THREE: Requests = ((5, 1), (9, 1), (2, 1))


def _bare(batch: ForwardBatch) -> ForwardBatch:
    return replace(batch, seq_lens_cpu=None, seq_lens_sum=None)


def _decoding(world: World) -> ForwardBatch:
    return world.batch(ForwardMode.DECODE, THREE)


@pytest.fixture
def calls() -> Iterator[list[Call]]:
    """List what `Noted` backends run."""
    Noted.calls.clear()
    yield Noted.calls
    Noted.calls.clear()


@pytest.mark.parametrize("backend", ["torch_native", "torch_padded"])
@pytest.mark.parametrize(("mode", "requests"), BATCHES)
def test_hidden_states_are_those_of_the_whole(
    device: torch.device, backend: str, mode: ForwardMode, requests: Requests
) -> None:
    """Whatever the step, each token's state is the one that the undivided batch gives it."""
    whole, halves = World(device, backend), World(device, backend)
    batch = halves.batch(mode, requests)

    hidden = halves.runner().hidden_states(batch, mode.phase)

    torch.testing.assert_close(hidden, whole.whole(batch), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(halves.cache(), whole.cache(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("backend", ["seen", "torch_padded"])
@pytest.mark.parametrize("prefixes", [[4, 0, 9, 2], [7, 1, 3], [0, 18]])
@pytest.mark.parametrize("unused", [0, 13])
def test_verified_trees_see_what_they_see_in_the_whole(
    device: torch.device, backend: str, prefixes: list[int], unused: int
) -> None:
    """Each half reads its own part of the tree mask, however long the contexts before it are."""
    whole, halves = World(device, "seen"), World(device, backend)
    batch = halves.tree_batch(prefixes, unused=unused)

    hidden = halves.runner().hidden_states(batch, batch.mode.phase)

    torch.testing.assert_close(hidden, whole.whole(batch), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(halves.cache(), whole.cache(), atol=1e-5, rtol=1e-5)


def test_tree_mask_of_the_other_half_is_seen_in_the_result() -> None:
    """Masks that are changed over are other trees, so the comparison can fail."""
    whole, halves = World("cpu", "torch_padded"), World("cpu", "torch_padded")
    batch = halves.tree_batch([4, 3, 9, 2], unused=64)
    assert batch.half_masks is not None
    first, second = batch.half_masks
    changed = replace(batch, half_masks=(second, first))

    hidden = halves.runner().hidden_states(changed, batch.mode.phase)

    assert not torch.allclose(hidden, whole.whole(batch), atol=1e-2)


@pytest.mark.parametrize(
    ("mode", "requests", "num_scored"),
    [
        pytest.param(ForwardMode.MIXED, ((0, 7), (3, 2), (9, 1)), 3, id="last tokens"),
        pytest.param(ForwardMode.VERIFY, ((5, 3), (0, 3), (11, 3)), 9, id="every token"),
    ],
)
def test_call_scores_the_tokens_that_the_model_scores(
    mode: ForwardMode, requests: Requests, num_scored: int
) -> None:
    """Logits are of each request's last token, or of every one, in the order of the batch."""
    whole, halves = World("cpu"), World("cpu")
    batch = halves.batch(mode, requests)

    logits = halves.runner()(batch, mode.phase)

    hidden, lasts = whole.whole(batch), batch.last_token_indices
    expected = whole.model.lm_head(hidden if lasts is None else hidden[lasts])
    assert logits.shape == (num_scored, CONFIG.vocab_size)
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)


def test_layers_of_the_halves_take_turns(calls: list[Call]) -> None:
    """Both halves are prepared, then each runs a layer before either runs the next one."""
    world = World("cpu", "noted")
    batch = world.batch(ForwardMode.DECODE, THREE)

    world.runner().hidden_states(batch, batch.mode.phase)

    rows = batch.req_pool_indices.tolist()
    turns = [(rows[:1], -1), (rows[1:], -1)]
    turns += [(own, layer) for layer in range(2) for own in (rows[:1], rows[1:])]
    assert [(call.rows, call.layer_id) for call in calls] == turns


def test_each_half_has_a_backend_object_of_its_own(calls: list[Call]) -> None:
    """What a backend prepares is one forward's, so the halves share none, step after step."""
    world = World("cpu", "noted")
    runner = world.runner()
    batch = world.batch(ForwardMode.DECODE, THREE)

    for _ in range(2):
        runner.hidden_states(batch, batch.mode.phase)

    first = {call.backend for call in calls if len(call.rows) == 1}
    second = {call.backend for call in calls if len(call.rows) == 2}
    assert (len(first), len(second), len(first | second)) == (1, 1, 2)


@pytest.mark.parametrize(
    ("phase", "batch_size", "expected"),
    [
        pytest.param(Phase.DECODE, 2, True, id="two requests"),
        pytest.param(Phase.DECODE, 1, False, id="one request"),
        pytest.param(Phase.PREFILL, 2, False, id="another phase"),
    ],
)
def test_runner_cuts_two_requests_or_more(phase: Phase, batch_size: int, expected: bool) -> None:
    """One request runs whole, and so does every batch of a phase that is not the runner's."""
    world, phases = World("cpu"), frozenset({Phase.DECODE})
    backends = world.backends(), world.backends()
    runner = TwoBatchRunner(world.model, backends, DeviceStreams("cpu"), phases)

    assert runner.cuts(phase, batch_size) is expected


def test_halves_of_an_opted_out_backend_need_no_mirror() -> None:
    """Where the backend reads no host lengths, neither do its halves."""
    whole, halves = World("cpu", "torch_padded"), World("cpu", "torch_padded")
    batch = halves.batch(ForwardMode.DECODE, THREE)

    hidden = halves.runner().hidden_states(_bare(batch), batch.mode.phase)

    torch.testing.assert_close(hidden, whole.whole(batch), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("backend", "make"),
    [
        pytest.param("torch_native", _decoding, id="torch_native"),
        pytest.param("torch_padded", _decoding, id="torch_padded"),
        pytest.param("torch_padded", lambda world: world.tree_batch([4, 0, 9]), id="trees"),
    ],
)
def test_forward_never_waits_for_the_device(
    backend: str, make: Callable[[World], ForwardBatch]
) -> None:
    """On a device that does no work before it must, the host enqueues both halves and returns."""
    with simulate("lazy") as simulation:
        world = World("sim", backend)
        batch, runner = make(world), world.runner()
        simulation.host_waits.clear()
        simulation.hidden_syncs.clear()

        runner(batch, batch.mode.phase)

    assert (simulation.host_waits, simulation.hidden_syncs) == ([], [])
