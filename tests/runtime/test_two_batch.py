"""A batch cut in two, by what its scheduler knows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from backend_caps.runtime.batch import ForwardMode
from backend_caps.runtime.forward_batch import ForwardBatch
from backend_caps.runtime.model.sampling import SamplingBatch
from backend_caps.runtime.two_batch import split
from backend_caps.simulator import simulate
from tests.runtime.graphs.rig import Requests
from tests.runtime.two_batches import World

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


def test_split_cuts_a_batch_by_the_number_of_its_requests() -> None:
    """Half of the requests stand in the first half, and the odd one in the second."""
    batch = World("cpu").batch(ForwardMode.DECODE, DECODE)

    first, second = split(batch)

    assert (first.batch_size, second.batch_size) == (2, 3)


def test_split_cuts_the_tokens_of_ragged_requests_where_the_second_half_begins() -> None:
    """However many tokens a request brings, they stay with it."""
    batch = World("cpu").batch(ForwardMode.MIXED, MIXED)

    first, second = split(batch)

    assert (first.num_tokens, second.num_tokens) == (7 + 2, 5 + 1 + 1)


def test_split_gives_one_request_to_the_first_half() -> None:
    """One request has no half of its own, so the second half is empty."""
    batch = World("cpu").batch(ForwardMode.VERIFY, VERIFY[:1])

    halves = split(batch)

    assert [(own.batch_size, own.num_tokens) for own in halves] == [(1, 3), (0, 0)]


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


@pytest.mark.parametrize("name", [*OF_TOKENS, *OF_REQUESTS, *EXTENDS])
def test_halves_are_views(name: str) -> None:
    """Nothing is copied: a half reads the memory of its batch."""
    batch = World("cpu").batch(ForwardMode.MIXED, MIXED)

    halves = split(batch)

    memory = _tensor(batch, name).untyped_storage().data_ptr()
    assert {_tensor(half, name).untyped_storage().data_ptr() for half in halves} == {memory}


def test_halves_have_host_lengths_of_their_own() -> None:
    """Sums and extend lengths on the host are those of a half's own requests."""
    batch = World("cpu").batch(ForwardMode.MIXED, MIXED)

    first, second = split(batch)

    assert (first.seq_lens_sum, second.seq_lens_sum) == (7 + 5, 9 + 10 + 3)
    assert (first.extend_seq_lens_cpu, second.extend_seq_lens_cpu) == ((7, 2), (5, 1, 1))
    assert (first.extend_prefix_lens_cpu, second.extend_prefix_lens_cpu) == ((0, 3), (4, 9, 2))


def test_last_tokens_are_counted_from_the_start_of_each_half() -> None:
    """The place of a request's last token is its place among the half's tokens."""
    batch = World("cpu").batch(ForwardMode.MIXED, MIXED)

    first, second = split(batch)

    assert _tensor(first, "last_token_indices").tolist() == [6, 8]
    assert _tensor(second, "last_token_indices").tolist() == [4, 5, 6]


def test_bounds_are_cut_where_there_are_any() -> None:
    """A half's upper bounds are its own requests'."""
    bound = torch.tensor([7, 2, 13, 9, 4])
    batch = replace(World("cpu").batch(ForwardMode.DECODE, DECODE), seq_lens_cpu_upper_bound=bound)

    first, second = split(batch)

    assert _tensor(first, "seq_lens_cpu_upper_bound").tolist() == [7, 2]
    assert _tensor(second, "seq_lens_cpu_upper_bound").tolist() == [13, 9, 4]


@pytest.mark.parametrize(
    "name",
    [
        *("seq_lens_cpu_upper_bound", "last_token_indices", "tree_mask"),
        *(*EXTENDS, "extend_seq_lens_cpu", "extend_prefix_lens_cpu"),
    ],
)
def test_what_a_batch_may_lack_its_halves_lack(name: str) -> None:
    """A decode batch has no extend lengths, bounds or tree, and neither do its halves."""
    halves = split(World("cpu").batch(ForwardMode.DECODE, DECODE))

    assert [getattr(half, name) for half in halves] == [None, None]


def test_halves_choose_no_tokens() -> None:
    """Tokens are chosen of the whole batch, so a half cannot choose by rows of the whole."""
    batch = World("cpu").batch(ForwardMode.DECODE, DECODE)
    numbers, shares = torch.ones(5, dtype=torch.int64), torch.ones(5)
    sampling = SamplingBatch(temperature=shares, seeds=numbers, positions=numbers)

    halves = split(replace(batch, sampling=sampling))

    assert [half.sampling for half in halves] == [None, None]


def test_split_writes_nothing_to_the_batch() -> None:
    """The batch is after it what it was: the same tensors, with the same numbers."""
    batch = World("cpu").batch(ForwardMode.MIXED, MIXED)
    before = replace(batch)
    numbers = [_tensor(batch, name).tolist() for name in (*OF_TOKENS, "last_token_indices")]

    split(batch)

    assert all(getattr(batch, name) is getattr(before, name) for name in batch.__slots__)
    names = (*OF_TOKENS, "last_token_indices")
    assert [_tensor(batch, name).tolist() for name in names] == numbers


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
    ("mode", "requests"),
    [
        pytest.param(ForwardMode.DECODE, DECODE, id="decode"),
        pytest.param(ForwardMode.VERIFY, VERIFY, id="chains"),
        pytest.param(ForwardMode.MIXED, MIXED, id="mixed"),
    ],
)
def test_split_needs_no_mirror(mode: ForwardMode, requests: Requests) -> None:
    """Without host lengths a batch is cut at the same places, and its halves have none either."""
    batch = World("cpu").batch(mode, requests)
    bare = replace(batch, seq_lens_cpu=None, seq_lens_sum=None)

    halves = split(bare)

    sizes = [(own.batch_size, own.num_tokens) for own in split(batch)]
    assert [(own.batch_size, own.num_tokens) for own in halves] == sizes
    assert [(own.seq_lens_cpu, own.seq_lens_sum) for own in halves] == [(None, None)] * 2


def test_split_of_a_mixed_batch_reads_the_schedulers_own_cut() -> None:
    """Where prefixes are on the device alone, the tokens of each request are known all the same."""
    batch = World("cpu").batch(ForwardMode.MIXED, MIXED)
    lens_cpu = batch.extend_seq_lens_cpu
    on_device = replace(batch, extend_seq_lens_cpu=None, extend_prefix_lens_cpu=None)

    halves = split(replace(on_device, mixed_lens_cpu=lens_cpu))

    assert [own.num_tokens for own in halves] == [7 + 2, 5 + 1 + 1]
    assert [own.extend_seq_lens_cpu for own in halves] == [None, None]


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
