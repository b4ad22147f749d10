from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from backend_caps.relay import DeviceStreams
from backend_caps.runtime.batch import token_positions
from backend_caps.runtime.staging import Staging
from tests.property.strategies import law


@pytest.mark.parametrize("numbers", [[], [7], [3, -1, 2**40]])
def test_stage_puts_numbers_into_host_memory(device: torch.device, numbers: list[int]) -> None:
    """Staged numbers are int64 on the host, pinned where the device has pinned memory."""
    staging = Staging(DeviceStreams(device))

    staged = staging.stage(numbers)

    assert staged.tolist() == numbers
    assert staged.dtype is torch.int64
    assert staged.device.type == "cpu"
    assert staged.is_pinned() is staging.streams.traits.has_pinned_memory


def test_upload_copies_columns_to_the_device(device: torch.device) -> None:
    """Each column becomes a row of one tensor on the device."""
    staging = Staging(DeviceStreams(device))

    uploaded = staging.upload(([1, 2, 3], [4, 5, 6]))

    assert uploaded.tolist() == [[1, 2, 3], [4, 5, 6]]
    assert uploaded.device == staging.streams.device


def test_upload_of_nothing_has_its_columns() -> None:
    """Columns without numbers are columns still."""
    staging = Staging(DeviceStreams("cpu"))

    assert staging.upload(([], [])).shape == (2, 0)


def test_staging_counts_what_it_carries() -> None:
    """Eight bytes are counted for each number, staged or uploaded."""
    staging = Staging(DeviceStreams("cpu"))

    staging.stage([1, 2])
    staging.upload(([1, 2, 3], [4, 5, 6]))

    assert staging.num_bytes == 8 * 8


@given(stretches=st.lists(st.tuples(st.integers(0, 50), st.integers(0, 9)), max_size=6))
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
@law
def test_token_positions_lay_requests_out_one_after_the_other(
    dtype: torch.dtype, stretches: list[tuple[int, int]]
) -> None:
    """Each token has its request's place, and the position behind its prefix."""
    prefix_lens = torch.tensor([start for start, _ in stretches], dtype=dtype)
    extend_lens = torch.tensor([count for _, count in stretches], dtype=dtype)
    tokens = [
        (place, start + offset)
        for place, (start, count) in enumerate(stretches)
        for offset in range(count)
    ]

    owners, positions = token_positions(prefix_lens, extend_lens, len(tokens))

    assert list(zip(owners.tolist(), positions.tolist(), strict=True)) == tokens
    assert owners.dtype is positions.dtype is torch.int64
