from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from backend_caps.capability.vocabulary import HostSeqLens
from backend_caps.relay import DraftShape, RelayError, RelayField, RelayLayout
from backend_caps.relay.layout import NumberColumn, RowColumn
from tests.relay.batches import DRAFT, make_map, numbers
from tests.relay.fake_streams import FakeModule, FakeStreams

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


CPU = torch.device("cpu")
WORD = torch.complex128
ROWS = [2, 0, 3]


def source() -> Tensor:
    """Make three rows, wide enough to take parts of."""
    return torch.arange(3 * 64 * 2, dtype=torch.float32).view(3, 128)


VALUES = [
    pytest.param(source()[:, :64].contiguous(), id="contiguous"),
    pytest.param(source()[:, ::2], id="strided"),
    pytest.param(source()[:, :64], id="rows apart"),
    pytest.param(source().view(-1)[1 : 1 + 3 * 64].view(3, 64), id="between words"),
    pytest.param(source()[:, :64].to(torch.float64), id="other dtype"),
    # A batch of one counts as contiguous, whatever the stride of the tensor that it is cut from.
    *(pytest.param(torch.randn(1, wide)[:, :64], id=f"one of {wide}") for wide in (64, 65, 67, 68)),
    *(pytest.param(torch.randn(3, few), id=f"no whole words, {few}") for few in (1, 28, 33, 34)),
]
IN_BOTH = pytest.mark.parametrize("word", [WORD, None], ids=["in words", "in its dtype"])


@IN_BOTH
@pytest.mark.parametrize("values", VALUES)
def test_rows_are_stored_bit_by_bit(values: Tensor, word: torch.dtype | None) -> None:
    """However a payload lies in memory, and whatever unit it is copied in, it is the same."""
    column, rows = RowColumn(field(values.shape[1]), 4, CPU, word), numbers(ROWS[: len(values)])

    column.store(rows, values)

    assert torch.equal(column.load(rows), values.to(torch.float32))


@IN_BOTH
def test_columns_keep_no_graph(word: torch.dtype | None) -> None:
    """A payload that autograd follows is stored without its graph, which would never be freed."""
    column, tokens = RowColumn(field(64), 4, CPU, word), NumberColumn(4, CPU)
    values = torch.randn(1, 64, requires_grad=True)

    column.store(numbers([2]), values)
    tokens.store(numbers([2]), torch.ones(1, requires_grad=True))

    assert not column.table.requires_grad
    assert not tokens.table.requires_grad


def test_signalling_nans_survive_the_copy() -> None:
    """A copy in words computes nothing: bit patterns that no arithmetic keeps stay as they are."""
    column = RowColumn(field(64), 4, CPU, WORD)
    bits = torch.full((3, 64), 0x7F800001, dtype=torch.int32)

    column.store(numbers(ROWS), bits.view(torch.float32))

    assert torch.equal(column.load(numbers(ROWS)).view(torch.int32), bits)


def field(width: int) -> RelayField:
    """Make a field of a vector of float32."""
    return RelayField(name="hidden_states", row_shape=(width,), dtype=torch.float32)


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
