from __future__ import annotations

import pytest

from backend_caps.capability.vocabulary import HostSeqLens
from tests.relay.batches import make_map
from tests.relay.fake_streams import FakeModule, FakeStreams


@pytest.mark.parametrize(
    ("mode", "pool_size", "expected"),
    [
        pytest.param(HostSeqLens.NONE, 64, 0, id="none"),
        pytest.param(HostSeqLens.UPPER_BOUND, 64, 0, id="upper bound"),
        pytest.param(HostSeqLens.EXACT, 64, 64 * 8, id="exact, a short column"),
        pytest.param(HostSeqLens.EXACT, 8193, 3 * 8, id="exact, the rows of a long column"),
    ],
)
def test_bytes_to_host_are_those_of_the_copy(
    mode: HostSeqLens, pool_size: int, expected: int
) -> None:
    """A step of three requests brings to the host what its mode's copy moves."""
    fm = make_map(host_seq_lens=mode, pool_size=pool_size, streams=FakeStreams(FakeModule()))

    crossed = fm.bytes_to_host(3)

    assert crossed == expected


def test_bytes_to_host_of_a_blocking_copy_are_the_gathered_lengths() -> None:
    """A device without streams copies the batch's lengths and nothing else."""
    fm = make_map(host_seq_lens=HostSeqLens.EXACT)

    crossed = fm.bytes_to_host(3)

    assert crossed == 24


@pytest.mark.parametrize("pool_size", [64, 8193])
def test_bytes_to_host_of_no_request_are_none(pool_size: int) -> None:
    """An idle step brings nothing to the host."""
    fm = make_map(pool_size=pool_size, streams=FakeStreams(FakeModule()))

    crossed = fm.bytes_to_host(0)

    assert crossed == 0
