"""The page table says what a plain model of it says, whatever grows and goes."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend_caps.runtime.errors import OutOfPagesError
from backend_caps.runtime.memory import RequestMemory, num_pages_of
from tests.property.strategies import law
from tests.runtime.memories import MAX_CONTEXT_LEN, make_memory, pages_of, table_of

NUM_TOKENS = 96
_LENGTHS = st.lists(st.integers(1, MAX_CONTEXT_LEN), min_size=1, max_size=4)
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
            after = table_of(self.memory, row)
            assert after[: len(before)] == before, "what a row has stays where it is"
            assert len(after) == max(len(before), num_pages_of(length, size) * size)
            self.slots[row] = after


@pytest.mark.parametrize("page_size", [1, 4, 16])
@given(actions=_ACTIONS)
@law
def test_page_table_equals_its_model(page_size: int, actions: list[tuple[str, list[int]]]) -> None:
    """After any growth and release, each row has whole pages, its own, and never page 0."""
    model = _Model(make_memory(page_size=page_size, num_tokens=NUM_TOKENS)[0])

    for action, lengths in actions:
        model.act(action, lengths)

    memory = model.memory
    pages = [page for row in model.slots for page in pages_of(memory, row)]
    assert {row: table_of(memory, row) for row in model.slots} == model.slots
    assert all(slots == _whole_pages(slots, page_size) for slots in model.slots.values())
    assert sorted({*pages, 0}) == [0, *sorted(pages)]
    assert memory.pages.num_free == memory.pages.num_pages - len(pages)


def _whole_pages(slots: list[int], page_size: int) -> list[int]:
    """Write out the slots of the pages that begin a row's stretches."""
    return [slot + place for slot in slots[::page_size] for place in range(page_size)]
