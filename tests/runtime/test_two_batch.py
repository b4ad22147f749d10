"""A batch cut in two by what its scheduler knows, and a model over both halves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from backend_caps.runtime.batch import ForwardMode
from backend_caps.runtime.forward_batch import ForwardBatch
from backend_caps.runtime.two_batch import split
from backend_caps.simulator import simulate
from tests.runtime.graphs.rig import Requests
from tests.runtime.two_batches import Call, Noted, World

MIXED: Requests = ((0, 7), (3, 2), (4, 5), (9, 1), (2, 1))
DECODE: Requests = ((5, 1), (0, 1), (11, 1), (7, 1), (2, 1))
VERIFY: Requests = ((5, 3), (0, 3), (11, 3), (7, 3))
OF_TOKENS = ("input_ids", "positions", "out_cache_loc")
OF_REQUESTS = ("req_pool_indices", "seq_lens", "seq_lens_cpu")
EXTENDS = ("extend_seq_lens", "extend_prefix_lens")


def _tensor(batch: ForwardBatch, name: str) -> Tensor:
    tensor: object = getattr(batch, name)
    assert isinstance(tensor, Tensor), f"{name} is {tensor!r}"
    return tensor


@pytest.mark.parametrize(
    ("mode", "requests", "names"),
    [
        pytest.param(ForwardMode.DECODE, DECODE, (*OF_TOKENS, *OF_REQUESTS), id="decode"),
        pytest.param(ForwardMode.VERIFY, VERIFY, (*OF_TOKENS, *OF_REQUESTS), id="verify"),
        pytest.param(ForwardMode.MIXED, MIXED, (*OF_TOKENS, *OF_REQUESTS, *EXTENDS), id="mixed"),
        pytest.param(ForwardMode.EXTEND, MIXED[:2], (*OF_TOKENS, *EXTENDS), id="prefill of two"),
    ],
)
def test_halves_joined_are_the_whole(
    device: torch.device, mode: ForwardMode, requests: Requests, names: tuple[str, ...]
) -> None:
    """Each tensor of the batch is cut in two, and nothing of it is lost or repeated."""
    batch = World(device).batch(mode, requests)

    halves = split(batch)

    joined = {name: torch.cat([_tensor(half, name) for half in halves]).tolist() for name in names}
    assert joined == {name: _tensor(batch, name).tolist() for name in names}


def test_last_tokens_are_counted_from_the_start_of_each_half() -> None:
    """The place of a request's last token is its place among the half's tokens."""
    first, second = split(World("cpu").batch(ForwardMode.MIXED, MIXED))

    assert _tensor(first, "last_token_indices").tolist() == [6, 8]
    assert _tensor(second, "last_token_indices").tolist() == [4, 5, 6]


def test_halves_of_trees_have_the_masks_that_were_laid_out_for_them() -> None:
    """A half's mask begins at its own memory's start, and is none of the whole batch's."""
    batch = World("cpu").tree_batch([4, 0, 9, 2, 7])
    assert batch.half_masks is not None

    halves = split(batch)

    assert [half.tree_mask for half in halves] == [*batch.half_masks]
    assert [half.half_masks for half in halves] == [None, None]


def test_tree_mask_of_a_whole_batch_is_never_cut() -> None:
    """Where the second half's entries begin only the device knows: cutting there is our fault."""
    batch = World("cpu").tree_batch([4, 2])

    with pytest.raises(AssertionError, match="laid out in halves"):
        split(replace(batch, tree_mask=torch.ones(99, dtype=torch.bool), half_masks=None))


@pytest.mark.parametrize(
    ("mode", "requests", "sizes"),
    [
        pytest.param(ForwardMode.DECODE, DECODE, [(2, 2), (3, 3)], id="decode"),
        pytest.param(ForwardMode.VERIFY, VERIFY, [(2, 6), (2, 6)], id="chains"),
        pytest.param(ForwardMode.MIXED, MIXED, [(2, 7 + 2), (3, 5 + 1 + 1)], id="mixed"),
    ],
)
def test_split_cuts_by_requests_and_needs_no_mirror(
    mode: ForwardMode, requests: Requests, sizes: list[tuple[int, int]]
) -> None:
    """The odd request stands in the second half; without host lengths halves have none either."""
    batch = World("cpu").batch(mode, requests)

    halves = split(batch)
    bare = split(replace(batch, seq_lens_cpu=None, seq_lens_sum=None))

    assert [(own.batch_size, own.num_tokens) for own in halves] == sizes
    assert [(own.batch_size, own.num_tokens) for own in bare] == sizes
    assert [(own.seq_lens_cpu, own.seq_lens_sum) for own in bare] == [(None, None)] * 2


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda world: world.batch(ForwardMode.DECODE, DECODE), id="decode"),
        pytest.param(lambda world: world.batch(ForwardMode.MIXED, MIXED), id="mixed"),
        pytest.param(lambda world: world.tree_batch([4, 0, 9]), id="trees"),
    ],
)
def test_split_never_waits_for_the_device(make: Callable[[World], ForwardBatch]) -> None:
    """On a device that does no work before it must, cutting makes the host wait for nothing."""
    with simulate("lazy") as simulation:
        batch = make(World("sim"))
        simulation.host_waits.clear()
        simulation.hidden_syncs.clear()

        split(batch)

    assert (simulation.host_waits, simulation.hidden_syncs) == ([], [])


BATCHES = [
    pytest.param(ForwardMode.DECODE, ((5, 1), (0, 1), (11, 1), (7, 1)), id="decode"),
    pytest.param(ForwardMode.DECODE, ((5, 1), (9, 1), (0, 1)), id="decode of three"),
    pytest.param(ForwardMode.EXTEND, ((0, 9), (4, 3), (0, 1), (8, 8), (2, 5)), id="prefill"),
    pytest.param(ForwardMode.MIXED, ((0, 7), (3, 2), (9, 1), (2, 1), (20, 1)), id="mixed"),
    pytest.param(ForwardMode.VERIFY, ((5, 3), (0, 3), (11, 3)), id="verify of chains"),
    pytest.param(ForwardMode.DRAFT_EXTEND, ((5, 4), (0, 4)), id="draft-extend"),
]
THREE: Requests = ((5, 1), (9, 1), (2, 1))


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


def test_layers_of_the_halves_take_turns(calls: list[Call]) -> None:
    """Both halves are prepared, then each runs a layer before either runs the next one."""
    world = World("cpu", "noted")
    batch = world.batch(ForwardMode.DECODE, THREE)

    world.runner().hidden_states(batch, batch.mode.phase)

    rows = batch.req_pool_indices.tolist()
    turns = [(rows[:1], -1), (rows[1:], -1)]
    turns += [(own, layer) for layer in range(2) for own in (rows[:1], rows[1:])]
    assert [(call.rows, call.layer_id) for call in calls] == turns


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

        runner.hidden_states(batch, batch.mode.phase)

    assert (simulation.host_waits, simulation.hidden_syncs) == ([], [])
