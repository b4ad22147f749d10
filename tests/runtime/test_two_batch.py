"""A batch cut in two, and what has to be known for it on the host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from backend_caps.conformance.simulator import simulate
from backend_caps.runtime.batch import ForwardMode
from backend_caps.runtime.errors import TwoBatchLengthsError
from backend_caps.runtime.forward_batch import ForwardBatch
from backend_caps.runtime.model import SamplingBatch
from backend_caps.runtime.two_batch import split
from tests.runtime.graphs.rig import Requests
from tests.runtime.two_batches import TREE, World

MIXED: Requests = ((0, 7), (3, 2), (4, 5), (9, 1), (2, 1))
DECODE: Requests = ((5, 1), (0, 1), (11, 1), (7, 1), (2, 1))
VERIFY: Requests = ((5, 3), (0, 3), (11, 3), (7, 3))
OF_TOKENS = ("input_ids", "positions", "out_cache_loc")
OF_REQUESTS = ("req_pool_indices", "seq_lens", "seq_lens_cpu")
EXTENDS = ("extend_seq_lens", "extend_prefix_lens")


def _halves(batch: ForwardBatch) -> tuple[ForwardBatch, ForwardBatch]:
    halves = split(batch)
    assert halves is not None, "there are two requests or more"
    return halves


def _tensor(batch: ForwardBatch, name: str) -> Tensor:
    tensor: object = getattr(batch, name)
    assert isinstance(tensor, Tensor), f"{name} is {tensor!r}"
    return tensor


def test_split_cuts_a_batch_by_the_number_of_its_requests() -> None:
    """Half of the requests stand in the first half, and the odd one in the second."""
    batch = World("cpu").batch(ForwardMode.DECODE, DECODE)

    first, second = _halves(batch)

    assert (first.batch_size, second.batch_size) == (2, 3)


def test_split_cuts_the_tokens_of_ragged_requests_where_the_second_half_begins() -> None:
    """However many tokens a request brings, they stay with it."""
    batch = World("cpu").batch(ForwardMode.MIXED, MIXED)

    first, second = _halves(batch)

    assert (first.num_tokens, second.num_tokens) == (7 + 2, 5 + 1 + 1)


@pytest.mark.parametrize("count", [0, 1])
def test_split_leaves_less_than_two_requests_whole(count: int) -> None:
    """There is nothing to cut in one request, and in none; what the batch lacks does not matter."""
    batch = World("cpu").batch(ForwardMode.DECODE, DECODE[:count])

    halves = split(replace(batch, seq_lens_cpu=None))

    assert halves is None


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

    halves = _halves(batch)

    joined = {name: torch.cat([_tensor(half, name) for half in halves]).tolist() for name in names}
    assert joined == {name: _tensor(batch, name).tolist() for name in names}


@pytest.mark.parametrize("name", [*OF_TOKENS, *OF_REQUESTS, *EXTENDS, "tree_mask"])
def test_halves_are_views(name: str) -> None:
    """Nothing is copied: a half reads the memory of its batch."""
    world = World("cpu")
    is_tree = name == "tree_mask"
    batch = world.tree_batch([4, 2]) if is_tree else world.batch(ForwardMode.MIXED, MIXED)

    halves = _halves(batch)

    memory = _tensor(batch, name).untyped_storage().data_ptr()
    assert {_tensor(half, name).untyped_storage().data_ptr() for half in halves} == {memory}


def test_halves_have_host_lengths_of_their_own() -> None:
    """Sums and extend lengths on the host are those of a half's own requests."""
    batch = World("cpu").batch(ForwardMode.MIXED, MIXED)

    first, second = _halves(batch)

    assert (first.seq_lens_sum, second.seq_lens_sum) == (7 + 5, 9 + 10 + 3)
    assert (first.extend_seq_lens_cpu, second.extend_seq_lens_cpu) == ((7, 2), (5, 1, 1))
    assert (first.extend_prefix_lens_cpu, second.extend_prefix_lens_cpu) == ((0, 3), (4, 9, 2))


def test_last_tokens_are_counted_from_the_start_of_each_half() -> None:
    """The place of a request's last token is its place among the half's tokens."""
    batch = World("cpu").batch(ForwardMode.MIXED, MIXED)

    first, second = _halves(batch)

    assert _tensor(first, "last_token_indices").tolist() == [6, 8]
    assert _tensor(second, "last_token_indices").tolist() == [4, 5, 6]


def test_bounds_are_cut_where_there_are_any() -> None:
    """A half's upper bounds are its own requests'."""
    bound = torch.tensor([7, 2, 13, 9, 4])
    batch = replace(World("cpu").batch(ForwardMode.DECODE, DECODE), seq_lens_cpu_upper_bound=bound)

    first, second = _halves(batch)

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
    halves = _halves(World("cpu").batch(ForwardMode.DECODE, DECODE))

    assert [getattr(half, name) for half in halves] == [None, None]


def test_halves_choose_no_tokens() -> None:
    """Tokens are chosen of the whole batch, so a half cannot choose by rows of the whole."""
    batch = World("cpu").batch(ForwardMode.DECODE, DECODE)
    numbers, shares = torch.ones(5, dtype=torch.int64), torch.ones(5)
    sampling = SamplingBatch(temperature=shares, seeds=numbers, positions=numbers)

    halves = _halves(replace(batch, sampling=sampling))

    assert [half.sampling for half in halves] == [None, None]


def test_split_writes_nothing_to_the_batch() -> None:
    """The batch is after it what it was: the same tensors, with the same numbers."""
    batch = World("cpu").batch(ForwardMode.MIXED, MIXED)
    before = replace(batch)
    numbers = [_tensor(batch, name).tolist() for name in (*OF_TOKENS, "last_token_indices")]

    _halves(batch)

    assert all(getattr(batch, name) is getattr(before, name) for name in batch.__slots__)
    names = (*OF_TOKENS, "last_token_indices")
    assert [_tensor(batch, name).tolist() for name in names] == numbers


@pytest.mark.parametrize("unused", [0, 11])
def test_tree_mask_is_cut_where_the_second_half_begins(unused: int) -> None:
    """Its offset is a request's tokens times the lengths before; what is nobody's comes last."""
    world, prefixes = World("cpu"), [4, 0, 9, 2, 7]
    batch = world.tree_batch(prefixes, unused=unused)

    masks = [_tensor(half, "tree_mask") for half in _halves(batch)]

    sizes = [len(TREE) * (cached + len(TREE)) for cached in prefixes]
    assert [len(mask) for mask in masks] == [sum(sizes[:2]), sum(sizes[2:]) + unused]
    assert torch.equal(torch.cat(masks), _tensor(batch, "tree_mask"))


def test_tree_mask_that_is_too_short_is_a_fault_of_ours() -> None:
    """A mask that does not hold every request's rows is cut nowhere."""
    batch = World("cpu").tree_batch([4, 2])

    with pytest.raises(AssertionError, match="need a tree mask of 108 entries; this one has 107"):
        split(replace(batch, tree_mask=_tensor(batch, "tree_mask")[:-1]))


def test_tree_mask_of_ragged_requests_is_a_fault_of_ours() -> None:
    """Requests that bring different numbers of tokens have no layout of a mask."""
    batch = World("cpu").batch(ForwardMode.MIXED, MIXED)

    with pytest.raises(AssertionError, match="all bring the same number of tokens"):
        split(replace(batch, tree_mask=torch.ones(999, dtype=torch.bool)))


SUMS = "the sum of each half's lengths"
LACKING = [
    pytest.param(ForwardMode.DECODE, DECODE, "seq_lens_cpu", SUMS, id="decode"),
    pytest.param(ForwardMode.VERIFY, VERIFY, "seq_lens_cpu", SUMS, id="chains"),
    pytest.param(ForwardMode.MIXED, MIXED, "seq_lens_cpu", SUMS, id="mixed"),
    pytest.param(
        *(ForwardMode.MIXED, MIXED, "extend_seq_lens_cpu", "where its tokens are cut"),
        id="mixed, cut on the device",
    ),
    pytest.param(
        *(ForwardMode.EXTEND, MIXED, "extend_seq_lens_cpu", "where its tokens are cut"),
        id="prefill, cut on the device",
    ),
]


@pytest.mark.parametrize(("mode", "requests", "field", "wanted"), LACKING)
def test_split_says_which_host_length_it_lacks(
    mode: ForwardMode, requests: Requests, field: str, wanted: str
) -> None:
    """Without the lengths that the rule forces, the split names the field and what it is for."""
    batch = World("cpu").batch(mode, requests)
    setattr(batch, field, None)

    with pytest.raises(TwoBatchLengthsError) as caught:
        split(batch)

    own = caught.value
    assert (own.field, own.wanted, own.mode) == (field, wanted, mode.value)


def test_split_of_a_tree_says_that_it_lacks_the_mirror() -> None:
    """The message names the batch, the field, the cuts, the rule that was expected and a remedy."""
    batch = replace(World("cpu").tree_batch([4, 0, 9]), seq_lens_cpu=None)

    with pytest.raises(TwoBatchLengthsError) as caught:
        split(batch)

    assert str(caught.value) == (
        "a batch of 3 requests in mode 'verify' cannot be split in two: its seq_lens_cpu is None, "
        "which says where its tree mask is cut, and the sum of each half's lengths; host lengths "
        "were expected, as the rule 'two-batch-overlap' forces host_seq_lens=exact. Resolve the "
        "plan with --enable-two-batch-overlap and without unsafe_override, and make the FutureMap "
        "of it."
    )


def test_upper_bounds_are_no_mirror() -> None:
    """Lengths that may be too long would cut a mask at the wrong entry, so they do not do."""
    batch = World("cpu").tree_batch([4, 0, 9])
    bounded = replace(batch, seq_lens_cpu=None, seq_lens_cpu_upper_bound=batch.seq_lens_cpu)

    with pytest.raises(TwoBatchLengthsError, match="its seq_lens_cpu is None"):
        split(bounded)


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

        _halves(batch)

    assert (simulation.host_waits, simulation.hidden_syncs) == ([], [])
