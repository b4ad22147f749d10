from __future__ import annotations

import pytest

from backend_caps.capability.vocabulary import HostSeqLens
from tests.relay.batches import make_map
from tests.relay.fake_streams import FakeModule, FakeStreams


@pytest.mark.parametrize(
    ("mode", "pool_size", "num_requests", "expected"),
    [
        (HostSeqLens.NONE, 64, 3, 0),
        (HostSeqLens.UPPER_BOUND, 64, 3, 0),
        pytest.param(HostSeqLens.EXACT, 64, 3, 64 * 8, id="a short column"),
        pytest.param(HostSeqLens.EXACT, 8193, 3, 3 * 8, id="the rows of a long column"),
        pytest.param(HostSeqLens.EXACT, 64, 0, 0, id="no request, a short column"),
        pytest.param(HostSeqLens.EXACT, 8193, 0, 0, id="no request, a long column"),
    ],
)
def test_bytes_to_host_are_those_of_the_copy(
    mode: HostSeqLens, pool_size: int, num_requests: int, expected: int
) -> None:
    """A step brings to the host what its mode's copy moves; an idle one nothing."""
    fm = make_map(host_seq_lens=mode, pool_size=pool_size, streams=FakeStreams(FakeModule()))

    assert fm.bytes_to_host(num_requests) == expected


def test_bytes_to_host_of_a_blocking_copy_are_the_gathered_lengths() -> None:
    """A device without streams copies the batch's lengths and nothing else."""
    assert make_map(host_seq_lens=HostSeqLens.EXACT).bytes_to_host(3) == 24
