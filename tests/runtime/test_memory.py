from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from backend_caps.relay import DeviceStreams
from backend_caps.runtime import AttentionLayer, EngineError, OutOfPagesError
from backend_caps.runtime.batch import token_positions
from backend_caps.runtime.memory import (
    PagePool,
    ReqToTokenPool,
    RequestMemory,
    TokenToKVPool,
    num_pages_of,
)
from backend_caps.runtime.staging import Staging
from tests.property.strategies import law
from tests.runtime import memories

CACHE = {"num_slots": 8, "num_layers": 2, "num_heads": 1, "head_dim": 2, "v_head_dim": 3}
SECOND_LAYER = AttentionLayer(
    layer_id=1, tp_q_head_num=1, tp_k_head_num=1, qk_head_dim=2, v_head_dim=3, scaling=1.0
)


def test_generations_grow_with_every_stay_in_a_row() -> None:
    """Each stay in a row has a larger number than the stay before."""
    rows = memories.make_rows(1)
    stays = []

    for _ in range(3):
        row, generation = rows.alloc()
        stays.append((row, generation))
        rows.free(row)

    assert stays == [(1, 1), (1, 2), (1, 3)]


@pytest.mark.parametrize("number", [0, -1, 4])
def test_pools_refuse_what_is_nobodys(number: int) -> None:
    """Padding, and rows and pages that there are not, are never given back."""
    with pytest.raises(AssertionError, match=f"row {number} is no request's"):
        memories.make_rows(3).free(number)
    with pytest.raises(AssertionError, match=f"page {number} is no request's"):
        PagePool(3).free([number])


def test_pools_refuse_what_is_free() -> None:
    """What is given back twice is refused at once, also within one call of pages."""
    rows, pages = memories.make_rows(2), PagePool(3)
    row, _ = rows.alloc()
    (page,) = pages.alloc(1)
    rows.free(row)

    with pytest.raises(AssertionError, match=f"row {row} is free already"):
        rows.free(row)
    with pytest.raises(AssertionError, match=f"page {page} is free already"):
        pages.free([page, page])


@pytest.mark.parametrize("field", ["max_requests", "max_context_len", "page_size"])
def test_req_to_token_pool_refuses_to_be_of_no_size(field: str) -> None:
    """A pool without rows, width or page size is refused by the name of what it lacks."""
    sizes = {"max_requests": 2, "max_context_len": 8, "page_size": 1, field: 0}

    with pytest.raises(EngineError) as caught:
        ReqToTokenPool(**sizes, device=torch.device("cpu"))

    assert str(caught.value) == f"{field} is 0; at least 1 was expected. Make it larger."


def test_out_of_pages_error_says_what_to_do() -> None:
    """The text has what was asked for, what there is, and two ways out."""
    assert str(OutOfPagesError(wanted=3, free=2, pages=5)) == (
        "3 pages of the KV cache were asked for, and 2 of 5 are free. "
        "Retract requests first, or make the cache larger."
    )


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


def test_request_memory_enters_nothing_where_nothing_lacks() -> None:
    """Rows that have their pages cost no upload."""
    memory = memories.make_memory(page_size=4)
    memories.enter(memory, memories.make_request())
    memory.grow([1], [1])
    before = memory.staging.num_bytes

    memory.grow([1], [4])

    assert memory.staging.num_bytes == before


NUM_TOKENS = 96
_LENGTHS = st.lists(st.integers(1, memories.MAX_CONTEXT_LEN), min_size=1, max_size=4)
_ACTIONS = st.lists(st.tuples(st.sampled_from(["enter", "grow", "leave"]), _LENGTHS), max_size=30)


@dataclass
class _Model:
    """Which slots each row has, written down by hand, beside the memory itself."""

    memory: RequestMemory
    slots: dict[int, list[int]] = field(default_factory=dict)
    num_refused: int = 0

    def act(self, action: str, lengths: list[int]) -> None:
        if action == "enter" and self.memory.rows.num_free:
            self.slots[self.memory.rows.alloc()[0]] = []
        elif action == "leave" and self.slots:
            row = sorted(self.slots)[lengths[0] % len(self.slots)]
            self.memory.release(row)
            del self.slots[row]
        elif action == "grow" and self.slots:
            rows = sorted(self.slots)[: len(lengths)]
            self._grow(rows, lengths[: len(rows)])

    def _grow(self, rows: list[int], lengths: list[int]) -> None:
        size = self.memory.page_size
        free = self.memory.pages.num_free
        missing = sum(
            max(0, num_pages_of(length, size) - len(self.slots[row]) // size)
            for row, length in zip(rows, lengths, strict=True)
        )
        if missing > free:
            with pytest.raises(OutOfPagesError):
                self.memory.grow(rows, lengths)
            self.num_refused += 1
            return
        self.memory.grow(rows, lengths)
        for row, length in zip(rows, lengths, strict=True):
            before = self.slots[row]
            after = memories.table_of(self.memory, row)
            assert after[: len(before)] == before, "what a row has stays where it is"
            assert len(after) == max(len(before), num_pages_of(length, size) * size)
            self.slots[row] = after


@pytest.mark.parametrize("page_size", [1, 4, 16])
@given(actions=_ACTIONS)
@law
def test_page_table_equals_its_model(page_size: int, actions: list[tuple[str, list[int]]]) -> None:
    """After any growth and release, each row has whole pages, its own, and never page 0."""
    model = _Model(memories.make_memory(page_size=page_size, num_tokens=NUM_TOKENS))

    for action, lengths in actions:
        model.act(action, lengths)

    memory = model.memory
    pages = [page for row in model.slots for page in memories.pages_of(memory, row)]
    assert {row: memories.table_of(memory, row) for row in model.slots} == model.slots
    assert all(slots == _whole_pages(slots, page_size) for slots in model.slots.values())
    assert sorted({*pages, 0}) == [0, *sorted(pages)]
    assert memory.pages.num_free == memory.pages.num_pages - len(pages)


def _whole_pages(slots: list[int], page_size: int) -> list[int]:
    """Write out the slots of the pages that begin a row's stretches."""
    return [slot + place for slot in slots[::page_size] for place in range(page_size)]


@pytest.mark.parametrize("numbers", [[], [7], [3, -1, 2**40]])
def test_stage_puts_numbers_into_host_memory(device: torch.device, numbers: list[int]) -> None:
    """Staged numbers are int64 on the host, pinned where the device has pinned memory."""
    staging = Staging(DeviceStreams(device))

    staged = staging.stage(numbers)

    assert staged.tolist() == numbers
    assert staged.dtype is torch.int64
    assert staged.device.type == "cpu"
    # Of no bytes, CUDA has no memory that it could call pinned.
    assert staged.is_pinned() is (staging.streams.traits.has_pinned_memory and bool(numbers))


def test_upload_copies_columns_to_the_device(device: torch.device) -> None:
    """Each column becomes a row of one tensor on the device."""
    staging = Staging(DeviceStreams(device))

    uploaded = staging.upload(([1, 2, 3], [4, 5, 6]))

    assert uploaded.tolist() == [[1, 2, 3], [4, 5, 6]]
    assert uploaded.device == staging.streams.device


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
