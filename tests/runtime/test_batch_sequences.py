"""Whatever a batch goes through: its device lengths equal its mirror, and old tensors stay."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend_caps.runtime.batch import ScheduleBatch
from tests.property.strategies import law
from tests.runtime.memories import enter, make_memory, make_request, values_of

_ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["extend", "decode", "mix", "filter", "copy"]),
        st.lists(st.integers(1, 9), min_size=1, max_size=3),
    ),
    max_size=12,
)


class _Run:
    """A batch, the lengths that it should have, and what it was before each action."""

    def __init__(self, page_size: int) -> None:
        self._memory, self._staging = make_memory(
            page_size=page_size, num_tokens=2048, max_requests=40
        )
        self.batch = ScheduleBatch.empty(self._memory, self._staging)
        self.lengths: list[int] = []
        self.past: list[tuple[ScheduleBatch, dict[str, object]]] = []

    def act(self, action: str, numbers: Sequence[int]) -> None:
        """Do one thing to the batch, and to the lengths that it should have."""
        before = self.batch.copy()
        self.past.append((before, values_of(before)))
        grown = [length + 1 for length in self.lengths]
        match action:
            case "extend":
                self.batch.merge(self._prompts(numbers))
                self.lengths = [*self.lengths, *numbers]
            case "decode":
                self.batch.prepare_for_decode()
                self.lengths = grown
            case "mix":
                self.batch.prepare_for_decode()
                mixed = self._prompts(numbers)
                mixed.mix_with_running(self.batch)
                self.batch, self.lengths = mixed, [*numbers, *grown]
            case "filter":
                self._filter(numbers)
            case _:
                self.batch = self.batch.copy()

    def _prompts(self, lengths: Sequence[int]) -> ScheduleBatch:
        requests = [make_request(prompt=[7] * length) for length in lengths]
        enter(self._memory, *requests)
        return ScheduleBatch.prepare_for_extend(requests, lengths, self._memory, self._staging)

    def _filter(self, numbers: Sequence[int]) -> None:
        size = len(self.lengths)
        keep = sorted({number % size for number in numbers}) if size else []
        self.batch.filter(keep)
        self.lengths = [self.lengths[place] for place in keep]


@pytest.mark.parametrize("page_size", [1, 4])
@given(actions=_ACTIONS)
@law
def test_device_lengths_equal_the_mirror(
    page_size: int, actions: list[tuple[str, list[int]]]
) -> None:
    """After every method of a batch, device and host say the same lengths and the same rows."""
    run = _Run(page_size)

    for action, numbers in actions:
        run.act(action, numbers)

        batch = run.batch
        rows = [request.row for request in batch.requests]
        assert batch.seq_lens.tolist() == batch.mirror.tolist() == run.lengths
        assert batch.req_pool_indices.tolist() == batch.req_pool_indices_cpu.tolist() == rows


@given(actions=_ACTIONS)
@law
def test_no_tensor_of_a_batch_is_written_to(actions: list[tuple[str, list[int]]]) -> None:
    """Who holds a batch of before finds every field as it was, whatever has been done since."""
    run = _Run(page_size=4)

    for action, numbers in actions:
        run.act(action, numbers)

    assert [values_of(batch) for batch, _ in run.past] == [values for _, values in run.past]
