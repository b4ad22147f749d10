from typing import Any

import pytest
import torch

from backend_caps.relay import DraftShape, RelayError, RelayField, RelayLayout
from tests.relay.batches import DRAFT, make_map

PLAIN, TOPK = ["seq_lens", "bonus_tokens"], ["topk_p", "topk_index"]


@pytest.mark.parametrize(
    ("draft", "names", "row_bytes"),
    [
        pytest.param(None, PLAIN, 16, id="plain"),
        pytest.param(DraftShape(topk=4), [*PLAIN, *TOPK], 64, id="without hidden states"),
        pytest.param(DRAFT, [*PLAIN, *TOPK, "hidden_states"], 48, id="with hidden states"),
    ],
)
def test_layout_is_known_from_the_draft_shape(
    draft: DraftShape | None, names: list[str], row_bytes: int
) -> None:
    """What is relayed, and what it takes, is known before the first step."""
    layout = RelayLayout.from_draft(draft)

    assert [field.name for field in layout.fields] == names
    assert layout.row_bytes == row_bytes


def test_map_shows_its_layout() -> None:
    """A map can be asked what it carries: hidden states as the draft worker makes them."""
    layout = make_map().layout

    expected = RelayField(name="hidden_states", row_shape=(4,), dtype=torch.bfloat16)
    assert layout == RelayLayout.from_draft(DRAFT)
    assert layout.draft[-1] == expected


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ({"topk": 0}, "topk=0; at least 1"),
        ({"topk": 1, "hidden_size": -2}, "hidden_size=-2; at least 1"),
        ({"topk": 1, "accept_tokens": 0}, "accept_tokens=0; at least 1"),
        ({"topk": 1, "hidden_size": 8}, "dtype=None; the dtype of the 8"),
        ({"topk": 1, "dtype": torch.bfloat16}, "hidden_size=None; the number of"),
    ],
)
def test_draft_shape_refuses_what_sizes_no_buffer(sizes: dict[str, Any], expected: str) -> None:
    """A shape that leaves a buffer without a size is an error that names the field."""
    with pytest.raises(RelayError, match=expected):
        DraftShape(**sizes)


@pytest.mark.parametrize("pool_size", [-1, 0, 1])
def test_pool_without_a_request_row_is_an_error(pool_size: int) -> None:
    """Row 0 is the padding row, so a pool of one row serves nobody."""
    with pytest.raises(RelayError, match=f"pool_size is {pool_size}; at least 2"):
        make_map(pool_size=pool_size)


def test_map_on_a_device_that_nobody_declared_is_an_error() -> None:
    """A device without declared traits is refused, and the way to declare them is named."""
    expected = (
        "the relay has no traits for device 'meta'; "
        "declared: cpu, cuda, mps, mtia, npu, sim, xpu. "
        "Pass streams=DeviceStreams('meta', DeviceTraits(...))."
    )

    with pytest.raises(RelayError, match="no traits") as caught:
        make_map("meta")

    assert str(caught.value) == expected
