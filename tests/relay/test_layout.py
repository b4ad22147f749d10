import pickle

import pytest
import torch

from backend_caps.relay import (
    DraftShape,
    FutureMap,
    RelayError,
    RelayField,
    RelayLayout,
)
from tests.relay.batches import DRAFT, make_map

FIELDS = [
    pytest.param(None, ["seq_lens", "bonus_tokens"], 16, id="plain"),
    pytest.param(
        DraftShape(topk=4),
        ["seq_lens", "bonus_tokens", "topk_p", "topk_index"],
        64,
        id="without hidden states",
    ),
    pytest.param(
        DRAFT,
        ["seq_lens", "bonus_tokens", "topk_p", "topk_index", "hidden_states"],
        48,
        id="with hidden states",
    ),
]


@pytest.mark.parametrize(("draft", "names", "row_bytes"), FIELDS)
def test_layout_is_known_from_the_draft_shape(
    draft: DraftShape | None, names: list[str], row_bytes: int
) -> None:
    """What is relayed, and what it takes, is known before the first step."""
    layout = RelayLayout.from_draft(draft)

    assert [field.name for field in layout.fields] == names
    assert layout.row_bytes == row_bytes


def test_layout_keeps_the_hidden_states_dtype() -> None:
    """Hidden states are stored as the draft worker makes them."""
    layout = RelayLayout.from_draft(DRAFT)

    expected = RelayField(name="hidden_states", row_shape=(4,), dtype=torch.bfloat16)
    assert layout.draft[-1] == expected


def test_map_shows_its_layout() -> None:
    """A map can be asked what it carries."""
    fm = make_map()

    assert fm.layout == RelayLayout.from_draft(DRAFT)


Sizes = tuple[int, int | None, int | None]
BAD_SHAPES = [
    pytest.param((0, None, None), "topk=0; at least 1", id="topk"),
    pytest.param((1, -2, None), "hidden_size=-2; at least 1", id="hidden"),
    pytest.param((1, None, 0), "accept_tokens=0; at least 1", id="accept"),
    pytest.param((1, 8, None), "dtype=None; the dtype of the 8", id="dtype"),
]


@pytest.mark.parametrize(("sizes", "expected"), BAD_SHAPES)
def test_draft_shape_refuses_what_sizes_no_buffer(sizes: Sizes, expected: str) -> None:
    """A shape that leaves a buffer without a size is an error that names the field."""
    topk, hidden_size, accept_tokens = sizes

    with pytest.raises(RelayError, match=expected):
        DraftShape(topk, hidden_size=hidden_size, accept_tokens=accept_tokens)


def test_draft_shape_refuses_a_dtype_of_nothing() -> None:
    """A dtype without a number of features is an error."""
    with pytest.raises(RelayError, match="hidden_size=None; the number of"):
        DraftShape(topk=1, dtype=torch.bfloat16)


@pytest.mark.parametrize("pool_size", [-1, 0, 1])
def test_pool_without_a_request_row_is_an_error(pool_size: int) -> None:
    """Row 0 is the padding row, so a pool of one row serves nobody."""
    with pytest.raises(RelayError, match=f"pool_size is {pool_size}; at least 2"):
        make_map(pool_size=pool_size)


def test_errors_survive_pickling() -> None:
    """An error that crosses a process keeps its fields and its sentence."""
    error = RelayError("pool-size", "pool_size is 1.")

    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes

    assert (copy.code, str(copy)) == ("pool-size", str(error))


def test_map_on_a_device_that_nobody_declared_is_an_error() -> None:
    """A device without declared traits is refused, and the way to declare them is named."""
    expected = (
        "the relay has no traits for device 'meta'; "
        "declared: cpu, cuda, mps, mtia, npu, sim, xpu. "
        "Pass streams=DeviceStreams('meta', DeviceTraits(...))."
    )

    with pytest.raises(Exception, match="no traits") as caught:
        FutureMap(
            pool_size=4,
            device="meta",
            host_seq_lens=make_map().host_seq_lens,
            speculative=False,
        )

    assert str(caught.value) == expected
