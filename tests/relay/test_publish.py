from contextlib import nullcontext

import pytest
import torch

from backend_caps.capability.vocabulary import HostSeqLens
from backend_caps.relay import (
    DeviceStreams,
    DeviceTraits,
    RelayError,
    RelayPayload,
    require_input_ids,
)
from tests.relay import batches
from tests.relay.batches import listed, make_map, numbers, spec_batch
from tests.relay.forbidding import syncs_forbidden


@pytest.mark.parametrize(
    ("published", "rows", "expected"),
    [
        pytest.param([([3, 7], [30, 70])], [7, 3], [70, 30], id="by row"),
        pytest.param([([1, 2], [10, 20]), ([2], [21])], [1, 2], [10, 21], id="others stay"),
        pytest.param([([4, 0, 0], [40, 1, 1])], [4], [40], id="padding repeats row 0"),
        pytest.param([([], [])], [], [], id="an idle rank comes first"),
    ],
)
def test_publish_is_read_by_the_next_step(
    device: torch.device,
    published: list[tuple[list[int], list[int]]],
    rows: list[int],
    expected: list[int],
) -> None:
    """A row's last published length is the next step's, whatever other rows were given."""
    fm = make_map(device)
    batch = spec_batch(rows, device)

    for written, lens in published:
        fm.publish(numbers(written, device), numbers(lens, device))
    fm.resolve_seq_lens_cpu(batch)

    assert batch.seq_lens.tolist() == expected
    assert batch.seq_lens_sum == sum(expected)


@pytest.mark.parametrize("lens", [[1, 2, 3], [1]])
@pytest.mark.parametrize("debug", [False, True])
@pytest.mark.parametrize("rows", [[], [1, 2]])
def test_publish_refuses_another_number_of_lengths(
    rows: list[int], lens: list[int], *, debug: bool
) -> None:
    """Lengths that are not one a row are refused, where a scatter would take what it needs."""
    fm = make_map(debug=debug)

    with pytest.raises(RelayError, match="publish was given seq_lens of shape"):
        fm.publish(numbers(rows), numbers(lens))


def test_stash_refuses_another_number_of_tokens() -> None:
    """Tokens that are not one a row are refused, too."""
    fm = make_map()

    with pytest.raises(RelayError, match=r"stash was given bonus_tokens of shape \(3,\)"):
        fm.stash(numbers([1, 2]), RelayPayload(numbers([1, 2, 3])))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_publish_takes_int32_and_int64(device: torch.device, dtype: torch.dtype) -> None:
    """Indices and lengths may be int32; what is stored is int64."""
    fm = make_map(device)
    batch = spec_batch([5], device)

    fm.publish(numbers([5], device).to(dtype), numbers([50], device).to(dtype))
    fm.resolve_seq_lens_cpu(batch)

    assert batch.seq_lens.tolist() == [50]
    assert batch.seq_lens.dtype is torch.int64


def test_publish_leaves_the_previous_batch_alone(device: torch.device) -> None:
    """What a batch was given is its own: the next publish does not change it."""
    fm = make_map(device)
    rows, batch = numbers([1], device), spec_batch([1], device)
    fm.publish(rows, numbers([10], device))
    fm.resolve_seq_lens_cpu(batch)

    fm.publish(rows, numbers([11], device))

    assert batch.seq_lens.tolist() == [10]
    assert listed(batch.seq_lens_cpu) == [10]


def test_plain_decode_relays_no_lengths(device: torch.device) -> None:
    """Outside speculative decode the scheduler knows the lengths, and nothing is touched."""
    fm = make_map(device, HostSeqLens.EXACT)
    batch = spec_batch([1], device)
    batch.spec_info = None
    stale = batch.seq_lens

    fm.resolve_seq_lens_cpu(batch)

    assert batch.seq_lens is stale
    assert batch.seq_lens_sum == -1


def test_map_without_overlap_leaves_a_speculative_batch(device: torch.device) -> None:
    """A map that relays no speculative steps leaves the draft worker's own values in place."""
    fm = make_map(device, speculative=False)
    batch = spec_batch([1], device)

    fm.resolve_seq_lens_cpu(batch)
    fm.resolve_future(batch)

    assert batch.seq_lens_sum == -1
    assert batch.spec_info is not None
    assert batch.spec_info.bonus_tokens is None


@pytest.mark.parametrize("mode", [HostSeqLens.NONE, HostSeqLens.UPPER_BOUND])
def test_step_without_a_mirror_synchronises_nothing(
    mode: HostSeqLens, device: torch.device
) -> None:
    """CUDA's own detector sees no host wait in a step without a mirror."""
    fm = make_map(device, mode)
    batch = spec_batch([3, 5], device)
    rows, lens = numbers([3, 5], device), numbers([30, 50], device)
    payload = RelayPayload(lens)

    with syncs_forbidden() if device.type == "cuda" else nullcontext():
        fm.publish(rows, lens)
        fm.stash(rows, payload)
        fm.resolve_seq_lens_cpu(batch)
        fm.resolve_future(batch)

    assert batch.seq_lens.tolist() == [30, 50]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_sentinels_are_negative_for_every_row(device: torch.device, dtype: torch.dtype) -> None:
    """No sentinel can pass for a token, row 0's neither; they are int64, as tokens are."""
    fm = batches.make_map(device, speculative=False)
    batch = batches.decode_batch(range(batches.POOL_SIZE), device)
    batch.req_pool_indices = batch.req_pool_indices.to(dtype)

    fm.set_input_ids_sentinel(batch)

    assert batches.listed(batch.input_ids) == [~row for row in range(batches.POOL_SIZE)]
    assert batch.input_ids is not None
    assert batch.input_ids.dtype is torch.int64


@pytest.mark.parametrize("batch", [batches.prefill_batch([3], [1, 2]), batches.spec_batch([3])])
def test_sentinels_leave_ids_that_come_from_elsewhere(batch: batches.Batch) -> None:
    """A prefill's ids come from the host, and a verify's from the draft worker."""
    batches.make_map(speculative=batch.spec_info is not None).set_input_ids_sentinel(batch)

    assert batch.input_ids is None
    assert not batch.input_ids_pending


def test_pending_ids_become_the_stashed_tokens(device: torch.device) -> None:
    """Each decode row reads the token that its last step left."""
    fm = batches.make_map(device, speculative=False)
    batch = batches.decode_batch([7, 3], device)
    fm.set_input_ids_sentinel(batch)

    fm.stash(batches.numbers([3, 7], device), RelayPayload(batches.numbers([33, 77], device)))
    fm.resolve_future(batch)

    assert require_input_ids(batch).tolist() == [77, 33]


def test_ids_that_are_there_stay(device: torch.device) -> None:
    """A batch whose ids are tokens already is not touched."""
    fm = batches.make_map(device, speculative=False)
    batch = batches.decode_batch([3], device)
    batch.input_ids = batches.numbers([5], device)

    fm.resolve_future(batch)

    assert require_input_ids(batch).tolist() == [5]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_staged_ids_cross_at_forward_entry(device: torch.device, dtype: torch.dtype) -> None:
    """Prompt tokens are brought over once, and the staging is given up."""
    fm = batches.make_map(device, speculative=False)
    batch = batches.decode_batch([3], device)
    batch.prefill_input_ids_cpu = batches.numbers([11, 12, 13]).to(dtype)

    fm.resolve_future(batch)

    input_ids = require_input_ids(batch)
    assert input_ids.tolist() == [11, 12, 13]
    assert input_ids.dtype is torch.int64
    assert input_ids.device.type == device.type


def test_staged_ids_cross_to_another_device() -> None:
    """On a device that is not the host the staged ids are copied there."""
    traits = DeviceTraits(has_streams=False, has_pinned_memory=False)
    fm = batches.make_map("meta", speculative=False, streams=DeviceStreams("meta", traits))
    batch = batches.prefill_batch([3], [11, 12])

    fm.resolve_future(batch)

    assert require_input_ids(batch).device.type == "meta"


def test_mixed_batch_has_prompts_before_decode_rows(device: torch.device) -> None:
    """A mixed batch reads its prompt tokens first, then the tokens of its decode rows."""
    fm = batches.make_map(device, speculative=False)
    batch = batches.prefill_batch([3, 7], [11, 12], [7], device)
    fm.stash(batches.numbers([7], device), RelayPayload(batches.numbers([77], device)))

    fm.resolve_future(batch)

    assert require_input_ids(batch).tolist() == [11, 12, 77]
    assert batch.mix_running_indices is None


def test_draft_state_is_relayed_by_row(device: torch.device) -> None:
    """A draft worker finds each request's state of the last step."""
    fm = batches.make_map(device)
    batch = batches.spec_batch([7, 3], device)

    fm.stash(batches.numbers([3, 7], device), batches.payload([33, 77], device))
    fm.resolve_future(batch)

    expected, state = batches.payload([77, 33], device), batch.spec_info
    assert state is not None
    torch.testing.assert_close(state.topk_p, expected.topk_p)
    torch.testing.assert_close(state.topk_index, expected.topk_index)
    torch.testing.assert_close(state.bonus_tokens, expected.bonus_tokens)
    torch.testing.assert_close(state.hidden_states, expected.hidden_states)


def test_stash_without_draft_state_keeps_it(device: torch.device) -> None:
    """A payload of a token alone refreshes the token, and the row's draft state stays."""
    fm = batches.make_map(device)
    batch, rows = batches.spec_batch([3], device), batches.numbers([3], device)
    fm.stash(rows, batches.payload([33], device))

    fm.stash(rows, RelayPayload(batches.numbers([34], device)))
    fm.resolve_future(batch)

    state = batch.spec_info
    assert state is not None
    torch.testing.assert_close(state.bonus_tokens, batches.numbers([34], device))
    torch.testing.assert_close(state.topk_index, batches.payload([33], device).topk_index)


def test_draft_without_state_gets_tokens_alone(device: torch.device) -> None:
    """A speculative map without a draft shape (NGRAM) relays the bonus token."""
    fm = batches.make_map(device)
    plain = type(fm)(pool_size=4, device=device, host_seq_lens=fm.host_seq_lens, speculative=True)
    batch = batches.spec_batch([3], device)

    plain.stash(batches.numbers([3], device), batches.payload([33], device))
    plain.resolve_future(batch)

    assert batch.spec_info is not None
    assert batches.listed(batch.spec_info.bonus_tokens) == [33]
    assert batch.spec_info.topk_p is None


def test_idle_speculative_batch_may_be_the_first_forward(device: torch.device) -> None:
    """Buffers are there before the first step, so an idle rank may enter first."""
    fm = batches.make_map(device)
    batch = batches.spec_batch([], device)

    fm.stash(batches.numbers([], device), batches.payload([], device))
    fm.resolve_future(batch)

    assert batch.spec_info is not None
    assert batch.spec_info.hidden_states is not None
    assert batch.spec_info.hidden_states.shape == (0, 4)


@pytest.mark.parametrize(
    ("batch", "pending", "expected"),
    [
        (batches.prefill_batch([3], [1, 2]), False, "2 prompt tokens are staged on the host"),
        (batches.decode_batch([3]), True, "1 decode rows hold sentinels"),
        (batches.decode_batch([3]), False, "input_ids is None and nothing is staged"),
    ],
    ids=["staged", "sentinels", "nothing"],
)
def test_forward_does_not_read_pending_ids(
    batch: batches.Batch, *, pending: bool, expected: str
) -> None:
    """A forward that reads ids before they are resolved is reported, with which."""
    batch.input_ids_pending = pending

    with pytest.raises(RelayError, match=expected) as caught:
        require_input_ids(batch)

    assert "Call FutureMap.resolve_future(batch)" in str(caught.value)
