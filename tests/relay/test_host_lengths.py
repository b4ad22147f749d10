import pytest
import torch

from backend_caps.capability.vocabulary import HostSeqLens
from backend_caps.relay import FutureMap, RelayError
from tests.relay.batches import decode_batch, listed, make_map, numbers, prefill_batch, spec_batch


def bound_of(fm: FutureMap, rows: list[int], device: torch.device | str = "cpu") -> list[int]:
    """Resolve a speculative step of some rows, and return its bounds."""
    batch = spec_batch(rows, device)
    fm.resolve_seq_lens_cpu(batch)
    return listed(batch.seq_lens_cpu_upper_bound)


MODES = [
    pytest.param(HostSeqLens.NONE, (None, None, None), id="none"),
    pytest.param(HostSeqLens.UPPER_BOUND, (None, None, [10, 20]), id="upper bound"),
    pytest.param(HostSeqLens.EXACT, ([10, 20], 30, [10, 20]), id="exact"),
]


@pytest.mark.parametrize(("mode", "expected"), MODES)
def test_host_fields_follow_the_mode(
    device: torch.device, mode: HostSeqLens, expected: tuple[object, ...]
) -> None:
    """Each mode sets every host field, so that no value of an earlier step survives."""
    fm = make_map(device, mode)
    batch = spec_batch([1, 2], device)
    fm.commit_lengths(numbers([1, 2]), numbers([10, 20]), numbers([0, 0]))
    fm.publish(batch.req_pool_indices, numbers([10, 20], device))

    fm.resolve_seq_lens_cpu(batch)

    mirror, bound = batch.seq_lens_cpu, batch.seq_lens_cpu_upper_bound
    found = (mirror, batch.seq_lens_sum, bound)
    assert tuple(x.tolist() if isinstance(x, torch.Tensor) else x for x in found) == expected


@pytest.mark.parametrize("mode", list(HostSeqLens))
def test_device_lengths_are_gathered_in_every_mode(device: torch.device, mode: HostSeqLens) -> None:
    """The lengths on the device advance whatever the host is told."""
    fm = make_map(device, mode)
    batch = spec_batch([2], device)
    fm.publish(batch.req_pool_indices, numbers([9], device))

    fm.resolve_seq_lens_cpu(batch)

    assert batch.seq_lens.tolist() == [9]


@pytest.mark.parametrize("num_rows", [1, 96, 97, 500])
def test_mirror_sum_is_the_lengths_sum(device: torch.device, num_rows: int) -> None:
    """The sum is that of the lengths, for short batches and for long ones."""
    fm = make_map(device, pool_size=512)
    batch = spec_batch(range(1, num_rows + 1), device)
    fm.publish(batch.req_pool_indices, batch.req_pool_indices * 2**33)

    fm.resolve_seq_lens_cpu(batch)

    assert batch.seq_lens_sum == 2**33 * num_rows * (num_rows + 1) // 2


@pytest.mark.parametrize("mode", [True, False, None])
def test_mode_is_not_a_bool(mode: HostSeqLens) -> None:
    """A flag of another meaning is refused; it would otherwise pick a mode unseen."""
    with pytest.raises(RelayError, match=f"host_seq_lens is {mode}; HostSeqLens.NONE"):
        make_map(host_seq_lens=mode)


def test_upper_bound_counts_steps_in_flight(device: torch.device) -> None:
    """Each step that is launched and not processed raises the bound by what it can accept."""
    fm = make_map(device, HostSeqLens.UPPER_BOUND)
    fm.commit_lengths(numbers([1]), numbers([100]), numbers([0]))

    bounds = [bound_of(fm, [1], device) for _ in range(3)]

    assert bounds == [[100], [103], [106]]


def test_upper_bound_is_clamped_to_the_width_of_a_row(device: torch.device) -> None:
    """No step starts above the width of a row, so no bound is above it."""
    fm = make_map(device, HostSeqLens.UPPER_BOUND, max_context_len=101)
    fm.commit_lengths(numbers([1]), numbers([100]), numbers([0]))

    bounds = [bound_of(fm, [1], device) for _ in range(2)]

    assert bounds == [[100], [101]]


def test_upper_bound_without_accept_tokens_is_an_error() -> None:
    """Nobody can bound a length without knowing how far one step goes."""
    with pytest.raises(RelayError, match=r"DraftShape\(accept_tokens=\.\.\.\)"):
        FutureMap(
            pool_size=4, device="cpu", host_seq_lens=HostSeqLens.UPPER_BOUND, speculative=True
        )


@pytest.mark.parametrize("accept_tokens", [0, -1])
@pytest.mark.parametrize("mode", list(HostSeqLens))
def test_accept_tokens_below_one_are_an_error(mode: HostSeqLens, accept_tokens: int) -> None:
    """Every step accepts its bonus token: with less, a bound would fall below the truth."""
    expected = f"accept_tokens is {accept_tokens}; at least 1 was expected"

    with pytest.raises(RelayError, match=expected):
        FutureMap(
            pool_size=4,
            device="cpu",
            host_seq_lens=mode,
            speculative=True,
            accept_tokens=accept_tokens,
        )


def test_plain_steps_count_for_the_bound(device: torch.device) -> None:
    """A plain decode step adds a token, so a speculative step behind it has a higher bound."""
    fm = make_map(device, HostSeqLens.UPPER_BOUND)
    fm.commit_lengths(numbers([1, 2]), numbers([100, 200]), numbers([0, 0]))

    fm.count_plain_step(decode_batch([1], device))

    assert bound_of(fm, [1, 2], device) == [103, 200]


def test_what_is_counted_elsewhere_counts_no_plain_step() -> None:
    """Neither marking ids as pending nor a batch whose lengths are relayed is a plain step."""
    fm = make_map(host_seq_lens=HostSeqLens.UPPER_BOUND)
    fm.commit_lengths(numbers([1]), numbers([100]), numbers([0]))

    fm.set_input_ids_sentinel(decode_batch([1]))
    fm.count_plain_step(spec_batch([1]))

    assert bound_of(fm, [1]) == [100]


@pytest.mark.parametrize(("running", "expected"), [([2], [100, 203]), (None, [100, 200])])
def test_mixed_decode_rows_count_for_the_bound(
    running: list[int] | None, expected: list[int]
) -> None:
    """Of a prefill's rows only the decode rows mixed in take a decode step."""
    fm = make_map(host_seq_lens=HostSeqLens.UPPER_BOUND)
    fm.commit_lengths(numbers([1, 2]), numbers([100, 200]), numbers([0, 0]))

    fm.count_plain_step(prefill_batch([1, 2], [5], running))

    assert bound_of(fm, [1, 2]) == expected


def test_upper_bound_without_a_draft_takes_accept_tokens() -> None:
    """A draft without relayed state (NGRAM) gives its step's reach by itself."""
    fm = FutureMap(
        pool_size=4,
        device="cpu",
        host_seq_lens=HostSeqLens.UPPER_BOUND,
        speculative=True,
        accept_tokens=5,
    )
    fm.commit_lengths(numbers([1]), numbers([7]), numbers([0]))

    bounds = [bound_of(fm, [1]) for _ in range(2)]

    assert bounds == [[7], [12]]


@pytest.mark.parametrize("mode", [HostSeqLens.NONE, HostSeqLens.EXACT])
def test_commit_lengths_is_a_no_op_without_bounds(mode: HostSeqLens) -> None:
    """An engine may commit in every mode; only bounds are made of it."""
    fm = make_map(host_seq_lens=mode)
    batch = spec_batch([1])
    fm.publish(batch.req_pool_indices, numbers([5]))

    fm.commit_lengths(numbers([1]), numbers([500]), numbers([0]))
    fm.resolve_seq_lens_cpu(batch)

    assert batch.seq_lens.tolist() == [5]
