"""The scheduler's batch of a speculative step, whose lengths the host may not know."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from backend_caps.runtime.batch import ScheduleBatch
from backend_caps.runtime.forward_batch import ForwardBatch
from backend_caps.runtime.memory import RequestMemory
from backend_caps.runtime.speculative.drafter import DraftState
from tests.runtime.memories import (
    enter,
    make_batch,
    make_memory,
    make_relay,
    make_request,
    table_of,
    values_of,
)


def _decoding(memory: RequestMemory, *lengths: int) -> ScheduleBatch:
    """Make a batch that is prepared for a speculative step, without a mirror."""
    batch = make_batch(memory, *lengths)
    batch.prepare_for_speculation([length + 6 for length in lengths], DraftState())
    batch.seq_lens_cpu = batch.seq_lens_sum = batch.seq_lens_cpu_upper_bound = None
    return batch


def _tell(batch: ScheduleBatch, mirror: list[int] | None, bound: list[int] | None) -> None:
    """Let the host have so much of a batch's lengths."""
    batch.seq_lens_cpu = None if mirror is None else torch.tensor(mirror)
    batch.seq_lens_cpu_upper_bound = None if bound is None else torch.tensor(bound)


def _on_host(batch: ScheduleBatch) -> tuple[object, object]:
    """Return the mirror and the bound."""
    values = values_of(batch)
    return values["seq_lens_cpu"], values["seq_lens_cpu_upper_bound"]


@pytest.mark.parametrize(
    ("mirror", "bound", "expected"),
    [
        pytest.param(None, None, (None, None), id="nothing"),
        pytest.param(None, [7, 9], (None, [8, 10]), id="a bound"),
        pytest.param([2, 3], None, ([3, 4], None), id="a mirror"),
        pytest.param([2, 3], [2, 3], ([3, 4], [3, 4]), id="both"),
    ],
)
def test_plain_step_adds_to_what_the_host_has(
    mirror: list[int] | None, bound: list[int] | None, expected: tuple[object, object]
) -> None:
    """Mirror and bound grow with the lengths, out of place, and what is absent stays so."""
    memory = make_memory()
    batch = _decoding(memory, 2, 3)
    _tell(batch, mirror, bound)
    old = batch.copy()

    batch.make_plain()

    assert _on_host(batch) == expected
    assert _on_host(old) == (mirror, bound)


def test_mix_without_a_mirror_places_every_token() -> None:
    """The forward's positions and slots are those that a mirror would have given."""
    memory = make_memory()
    running, batch = _decoding(memory, 4, 6), make_batch(memory, 3, 1, first=3)
    running.make_plain()
    batch.mix_with_running(running)
    make_relay(memory).resolve_future(batch)

    forward = ForwardBatch.init_new(batch)

    slots = [table_of(memory, row)[place] for row, place in ((4, 0), (1, 4), (2, 6))]
    assert forward.positions.tolist() == [0, 1, 2, 0, 4, 6]
    assert forward.out_cache_loc.tolist() == [*table_of(memory, 3), *slots]
    assert forward.extend_seq_lens_cpu is forward.extend_prefix_lens_cpu is None
    assert (forward.seq_lens_cpu, forward.seq_lens_sum) == (None, None)


@pytest.mark.parametrize(
    ("num_tokens", "expected"),
    [
        pytest.param((2, 3), (12, -1), id="one goes on"),
        pytest.param((5, 1), (-1, 21), id="the other goes on"),
        pytest.param((5, 3), (-1, -1), id="both end"),
    ],
)
def test_prompt_names_the_token_behind_its_stretch(
    num_tokens: tuple[int, int], expected: tuple[int, int]
) -> None:
    """A prompt that goes on has the next token already; behind its end the step makes it."""
    memory = make_memory()
    requests = [make_request(1, range(10, 15)), make_request(2, range(20, 23))]
    enter(memory, *requests)

    batch = ScheduleBatch.prepare_for_extend(requests, num_tokens, memory)

    assert batch.next_prompt_ids == expected


def _merged_into(batch: ScheduleBatch, other: ScheduleBatch) -> ScheduleBatch:
    other.merge(batch)
    return other


Change = Callable[[ScheduleBatch, ScheduleBatch], ScheduleBatch | None]
CHANGES = [
    pytest.param(lambda batch, _: batch.filter([1]), id="filter"),
    pytest.param(lambda batch, other: batch.merge(other), id="merge"),
    pytest.param(_merged_into, id="merge into another"),
    pytest.param(lambda batch, _: batch.make_plain(), id="plain step"),
    pytest.param(lambda batch, _: batch.copy(), id="copy"),
]


@pytest.mark.parametrize("change", CHANGES)
def test_absence_survives(change: Change) -> None:
    """Whatever becomes of a batch without a mirror, it has none afterwards, and no bound."""
    memory = make_memory()
    batch = _decoding(memory, 2, 3)
    other = make_batch(memory, 4, first=3)

    changed = change(batch, other) or batch

    assert (*_on_host(changed), changed.seq_lens_sum) == (None, None, None)


def test_bounds_survive_what_the_mirror_lacks() -> None:
    """Through filter, merge and copy the bounds stay with their requests."""
    memory = make_memory()
    batch = _decoding(memory, 2, 3, 5)
    _tell(batch, None, [9, 8, 7])
    batch.filter([0, 2])

    batch.merge(make_batch(memory, 4, first=4))

    assert values_of(batch.copy())["seq_lens_cpu_upper_bound"] == [9, 7, 4]
    assert batch.seq_lens.tolist() == [2, 5, 4]


@pytest.mark.parametrize(
    ("mirror", "bound", "expected"),
    [
        pytest.param([2, 3], None, [2, 3], id="the mirror"),
        pytest.param(None, [9, 8], [9, 8], id="a bound"),
        pytest.param(None, None, None, id="nothing"),
    ],
)
def test_forward_has_the_tightest_bound_there_is(
    mirror: list[int] | None, bound: list[int] | None, expected: list[int] | None
) -> None:
    """Where there is a mirror it is the forward's bound too; without either there is none."""
    memory = make_memory()
    batch = make_batch(memory, 2, 3)
    make_relay(memory).resolve_future(batch)
    _tell(batch, mirror, bound)

    forward = ForwardBatch.init_new(batch)

    found = forward.seq_lens_cpu_upper_bound
    assert (None if found is None else found.tolist()) == expected
