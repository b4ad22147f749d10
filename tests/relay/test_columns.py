import pytest
import torch
from torch import Tensor

from backend_caps.relay.layout import NumberColumn, RelayField, RowColumn
from tests.relay.batches import numbers

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
