from __future__ import annotations

import pytest
import torch

from backend_caps.runtime.errors import OutOfPagesError, PoolShapeError
from backend_caps.runtime.memory import PagePool, ReqToTokenPool, TokenToKVPool, num_pages_of
from backend_caps.runtime.model.layers import AttentionLayer
from tests.runtime.memories import enter, make_memory, make_request, make_rows, table_of

CACHE = {"num_slots": 8, "num_layers": 2, "num_heads": 1, "head_dim": 2, "v_head_dim": 3}
SECOND_LAYER = AttentionLayer(
    layer_id=1, tp_q_head_num=1, tp_k_head_num=1, qk_head_dim=2, v_head_dim=3, scaling=1.0
)


def test_req_to_token_pool_never_hands_out_the_padding_row() -> None:
    """All rows but row 0 are handed out, each to one request."""
    rows = make_rows(4)

    taken = [rows.alloc()[0] for _ in range(4)]

    assert sorted(taken) == [1, 2, 3, 4]
    assert rows.num_free == 0


def test_req_to_token_pool_refuses_more_requests_than_rows() -> None:
    """Who takes a row without asking `num_free` is told so."""
    rows = make_rows(1)
    rows.alloc()

    with pytest.raises(AssertionError, match="num_free"):
        rows.alloc()


def test_generations_grow_with_every_stay_in_a_row() -> None:
    """Each stay in a row has a larger number than the stay before."""
    rows = make_rows(1)
    stays = []

    for _ in range(3):
        row, generation = rows.alloc()
        stays.append((row, generation))
        rows.free(row)

    assert stays == [(1, 1), (1, 2), (1, 3)]


def test_req_to_token_pool_refuses_a_row_that_is_free() -> None:
    """A row that is given back twice is a fault of ours, and is told at once."""
    rows = make_rows(2)
    row, _ = rows.alloc()
    rows.free(row)

    with pytest.raises(AssertionError, match=f"row {row} is free already"):
        rows.free(row)


@pytest.mark.parametrize("row", [0, -1, 3])
def test_req_to_token_pool_refuses_a_row_of_nobody(row: int) -> None:
    """The padding row, and rows that there are not, are never given back."""
    rows = make_rows(2)

    with pytest.raises(AssertionError, match=f"row {row} is no request's"):
        rows.free(row)


@pytest.mark.parametrize(
    ("max_context_len", "page_size", "width"), [(10, 1, 10), (10, 4, 12), (16, 16, 16), (1, 16, 16)]
)
def test_req_to_token_pool_rows_are_whole_pages_wide(
    max_context_len: int, page_size: int, width: int
) -> None:
    """A row has room for every page of the longest context, and for no more."""
    rows = ReqToTokenPool(
        max_requests=3,
        max_context_len=max_context_len,
        page_size=page_size,
        device=torch.device("cpu"),
    )

    assert rows.req_to_token.shape == (4, width)
    assert rows.pool_size == 4


@pytest.mark.parametrize("field", ["max_requests", "max_context_len", "page_size"])
def test_req_to_token_pool_refuses_to_be_of_no_size(field: str) -> None:
    """A pool without rows, width or page size is refused by the name of what it lacks."""
    sizes = {"max_requests": 2, "max_context_len": 8, "page_size": 1, field: 0}

    with pytest.raises(PoolShapeError) as caught:
        ReqToTokenPool(**sizes, device=torch.device("cpu"))

    assert str(caught.value) == f"{field} is 0; at least 1 was expected. Make it larger."


def test_page_pool_never_hands_out_the_padding_page() -> None:
    """All pages but page 0 are handed out, each once."""
    pages = PagePool(5)

    taken = [*pages.alloc(2), *pages.alloc(3)]

    assert sorted(taken) == [1, 2, 3, 4, 5]


def test_page_pool_takes_nothing_where_it_has_too_little() -> None:
    """A request for more pages than are free leaves those that are."""
    pages = PagePool(3)
    pages.alloc(1)

    with pytest.raises(OutOfPagesError) as caught:
        pages.alloc(3)

    assert (caught.value.wanted, caught.value.free, caught.value.pages) == (3, 2, 3)
    assert pages.num_free == 2


def test_out_of_pages_error_says_what_to_do() -> None:
    """The text has what was asked for, what there is, and two ways out."""
    assert str(OutOfPagesError(wanted=3, free=2, pages=5)) == (
        "3 pages of the KV cache were asked for, and 2 of 5 are free. "
        "Retract requests first, or make the cache larger."
    )


@pytest.mark.parametrize("page", [0, -1, 4])
def test_page_pool_refuses_a_page_of_nobody(page: int) -> None:
    """The padding page, and pages that there are not, are never given back."""
    pages = PagePool(3)

    with pytest.raises(AssertionError, match=f"page {page} is no request's"):
        pages.free([page])


def test_page_pool_refuses_a_page_that_is_free() -> None:
    """A page that is given back twice, also in one call, is told at once."""
    pages = PagePool(3)
    (page,) = pages.alloc(1)

    with pytest.raises(AssertionError, match=f"page {page} is free already"):
        pages.free([page, page])


def test_page_pool_uses_the_last_page_that_came_back_first() -> None:
    """Pages go out again as they came back, so that one used again too soon shows at once."""
    pages = PagePool(6)
    taken = pages.alloc(3)

    pages.free(taken)

    assert pages.alloc(3) == taken


def test_kv_pool_stores_by_slot_and_layer(device: torch.device) -> None:
    """Keys and values come to their slots in the cache's dtype, in one layer alone."""
    pool = TokenToKVPool(**CACHE, dtype=torch.bfloat16, device=device)
    loc = torch.tensor([3, 6], device=device)
    k, v = torch.ones(2, 1, 2, device=device), torch.full((2, 1, 3), 2.0, device=device)

    pool.set_kv_buffer(SECOND_LAYER, loc, k, v)

    assert pool.get_key_buffer(1)[:, 0, 0].tolist() == [0, 0, 0, 1, 0, 0, 1, 0]
    assert pool.get_value_buffer(1)[:, 0, 2].tolist() == [0, 0, 0, 2, 0, 0, 2, 0]
    assert pool.get_key_buffer(1).dtype is torch.bfloat16
    assert not pool.get_key_buffer(0).any()


def _numbered(device: torch.device) -> TokenToKVPool:
    """Make a cache in which each slot has its number, times 10 in the second layer."""
    pool = TokenToKVPool(**CACHE, dtype=torch.float32, device=device)
    for layer_id, factor in ((0, 1), (1, 10)):
        for buffer in (pool.get_key_buffer(layer_id), pool.get_value_buffer(layer_id)):
            buffer.copy_(torch.arange(8, device=device).view(8, 1, 1) * factor)
    return pool


@pytest.mark.parametrize(
    ("sources", "targets", "expected"),
    [
        pytest.param([5, 6], [1, 2], [0, 5, 6, 3, 4, 5, 6, 7], id="apart"),
        pytest.param([2, 3, 4], [1, 2, 3], [0, 2, 3, 4, 4, 5, 6, 7], id="down by one"),
        pytest.param([1, 2, 3], [2, 3, 4], [0, 1, 1, 2, 3, 5, 6, 7], id="up by one"),
        pytest.param([1, 2], [2, 1], [0, 2, 1, 3, 4, 5, 6, 7], id="exchanged"),
        pytest.param([1, 3, 3], [1, 2, 3], [0, 1, 3, 3, 4, 5, 6, 7], id="one for two"),
        pytest.param([], [], [0, 1, 2, 3, 4, 5, 6, 7], id="nothing"),
    ],
)
def test_kv_pool_reads_all_that_it_moves_before_it_writes(
    sources: list[int], targets: list[int], expected: list[int], device: torch.device
) -> None:
    """Slots that are read and written keep what they had, in the move; so in every layer."""
    pool = _numbered(device)

    pool.move(*(torch.tensor(own, dtype=torch.int64, device=device) for own in (sources, targets)))

    for layer_id, factor in ((0, 1), (1, 10)):
        for buffer in (pool.get_key_buffer(layer_id), pool.get_value_buffer(layer_id)):
            own = torch.tensor(expected, dtype=torch.float32, device=device) * factor
            assert torch.equal(buffer, own.view(8, 1, 1).expand_as(buffer))


@pytest.mark.parametrize(
    ("max_context_len", "lookahead", "width"), [(10, 2, 12), (10, 3, 16), (12, 0, 12)]
)
def test_req_to_token_pool_has_room_behind_the_longest_context(
    max_context_len: int, lookahead: int, width: int
) -> None:
    """Rows have slots for what speculative steps write, in whole pages; contexts do not grow."""
    rows = ReqToTokenPool(
        max_requests=3,
        max_context_len=max_context_len,
        page_size=4,
        device=torch.device("cpu"),
        lookahead=lookahead,
    )

    assert rows.req_to_token.shape == (4, width)
    assert rows.max_context_len == max_context_len


@pytest.mark.parametrize(
    ("num_tokens", "page_size", "num_pages"),
    [(0, 4, 0), (1, 4, 1), (4, 4, 1), (5, 4, 2), (3, 1, 3)],
)
def test_num_pages_of_rounds_up(num_tokens: int, page_size: int, num_pages: int) -> None:
    """A page that is begun counts as one."""
    assert num_pages_of(num_tokens, page_size) == num_pages


def test_request_memory_gives_no_row_a_page_where_one_lacks_them() -> None:
    """Where pages run out, no row and no entry of the table has changed."""
    memory, _ = make_memory(num_tokens=8)
    enter(memory, make_request(), make_request())
    memory.grow([1, 2], [2, 3])
    before = memory.rows.req_to_token.clone()

    with pytest.raises(OutOfPagesError):
        memory.grow([1, 2], [4, 6])

    assert (memory.num_pages(1), memory.num_pages(2), memory.pages.num_free) == (2, 3, 3)
    assert torch.equal(memory.rows.req_to_token, before)


def test_request_memory_enters_nothing_where_nothing_lacks() -> None:
    """Rows that have their pages cost no upload."""
    memory, staging = make_memory(page_size=4)
    enter(memory, make_request())
    memory.grow([1], [1])
    before = staging.num_bytes

    memory.grow([1], [4])

    assert staging.num_bytes == before


def test_slots_of_looks_tokens_up(device: torch.device) -> None:
    """A token's slot is the one that its row's page has for its position, as int64."""
    memory, _ = make_memory(device, page_size=4)
    enter(memory, make_request(), make_request())
    memory.grow([1, 2], [6, 3])

    slots = memory.slots_of(
        torch.tensor([2, 1, 1], device=device), torch.tensor([2, 0, 5], device=device)
    )

    assert slots.tolist() == [table_of(memory, 2)[2], *(table_of(memory, 1)[i] for i in (0, 5))]
    assert slots.dtype is torch.int64


def test_release_gives_row_and_pages_back() -> None:
    """A released row and its pages are free, and nobody else's are."""
    memory, _ = make_memory(num_tokens=10)
    enter(memory, make_request(), make_request())
    memory.grow([1, 2], [4, 3])

    memory.release(1)

    assert (memory.pages.num_free, memory.rows.num_free) == (7, 7)
    assert (memory.num_pages(1), memory.num_pages(2)) == (0, 3)
