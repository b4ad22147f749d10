from contextlib import nullcontext

import pytest
import torch

from backend_caps.capability.vocabulary import HostSeqLens
from backend_caps.relay import RelayError, RelayPayload
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
