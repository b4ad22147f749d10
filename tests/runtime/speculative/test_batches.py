"""The scheduler's batch of a speculative step, whose lengths the host may not know."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch

from backend_caps.relay import RelayPayload
from backend_caps.runtime.batch import ForwardMode, ScheduleBatch
from backend_caps.runtime.errors import OutOfPagesError
from backend_caps.runtime.forward_batch import ForwardBatch
from backend_caps.runtime.memory import RequestMemory
from backend_caps.runtime.speculative.drafter import DraftState
from backend_caps.runtime.staging import Staging
from tests.runtime.memories import (
    enter,
    make_batch,
    make_memory,
    make_relay,
    make_request,
    table_of,
    values_of,
)

HOST_LENGTHS = ("seq_lens_cpu", "seq_lens_sum", "seq_lens_cpu_upper_bound")


def _decoding(
    memory: RequestMemory, staging: Staging, *lengths: int, first: int = 1
) -> ScheduleBatch:
    """Make a batch that is prepared for a speculative step, without a mirror."""
    batch = make_batch(memory, staging, *lengths, first=first)
    batch.prepare_for_speculation([length + 6 for length in lengths], DraftState())
    batch.seq_lens_cpu = batch.seq_lens_sum = batch.seq_lens_cpu_upper_bound = None
    return batch


def _bounded(batch: ScheduleBatch, *bounds: int) -> ScheduleBatch:
    batch.seq_lens_cpu_upper_bound = torch.tensor(bounds)
    return batch


def test_speculation_gives_pages_by_the_bound() -> None:
    """Each row has pages for as many tokens as its step may reach."""
    memory, staging = make_memory(page_size=4)
    batch = make_batch(memory, staging, 2, 3)

    batch.prepare_for_speculation([9, 13], DraftState())

    assert [memory.num_pages(row) for row in (1, 2)] == [3, 4]


def test_speculation_leaves_lengths_to_the_relay() -> None:
    """The device's lengths are those before the step, and slots are looked up there."""
    memory, staging = make_memory()
    batch = make_batch(memory, staging, 2, 3)
    before = batch.seq_lens

    batch.prepare_for_speculation([9, 10], DraftState())

    assert batch.seq_lens is before
    assert batch.out_cache_loc is None


def test_speculation_forgets_the_prompt() -> None:
    """Of the prompt's step nothing is left, and every request gets tokens."""
    memory, staging = make_memory()
    batch, state = make_batch(memory, staging, 2, 3), DraftState()

    batch.prepare_for_speculation([9, 10], state)

    assert (batch.mode, batch.samples) == (ForwardMode.DECODE, (True, True))
    assert batch.spec_info is state
    assert (batch.prefill_input_ids_cpu, batch.next_prompt_ids) == (None, ())
    assert (batch.extend_seq_lens, batch.extend_prefix_lens) == (None, None)
    assert batch.seq_lens_sum is None


def test_speculation_changes_nothing_where_pages_run_out() -> None:
    """Where a step does not fit, the batch is what it was."""
    memory, staging = make_memory(num_tokens=8)
    batch = make_batch(memory, staging, 2, 3)
    before = values_of(batch)

    with pytest.raises(OutOfPagesError):
        batch.prepare_for_speculation([9, 10], DraftState())

    assert values_of(batch) == before


def test_plain_step_of_a_mixed_batch_adds_one_token() -> None:
    """A row of a mixed batch writes at its length, and is one longer behind it."""
    memory, staging = make_memory()
    batch = _decoding(memory, staging, 2, 3)
    before = batch.seq_lens

    batch.make_plain()

    assert (before.tolist(), batch.seq_lens.tolist()) == ([2, 3], [3, 4])
    assert batch.out_cache_loc is not None
    assert batch.out_cache_loc.tolist() == [table_of(memory, 1)[2], table_of(memory, 2)[3]]
    assert batch.spec_info is None


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
    memory, staging = make_memory()
    batch = _decoding(memory, staging, 2, 3)
    batch.seq_lens_cpu = None if mirror is None else torch.tensor(mirror)
    batch.seq_lens_cpu_upper_bound = None if bound is None else torch.tensor(bound)
    old = batch.copy()

    batch.make_plain()

    values = values_of(batch)
    assert (values["seq_lens_cpu"], values["seq_lens_cpu_upper_bound"]) == expected
    assert (values_of(old)["seq_lens_cpu"], values_of(old)["seq_lens_cpu_upper_bound"]) == (
        mirror,
        bound,
    )


def _mixed(memory: RequestMemory, staging: Staging) -> ScheduleBatch:
    """Make a batch of two prompts, and two decode rows whose lengths the device alone knows."""
    running = _decoding(memory, staging, 4, 6)
    running.make_plain()
    batch = make_batch(memory, staging, 3, 1, first=3)
    batch.mix_with_running(running)
    return batch


def test_mix_without_a_mirror_has_extend_lengths_on_the_device(device: torch.device) -> None:
    """All extend lengths are tensors then: no part of them is on the host."""
    batch = _mixed(*make_memory(device))

    values = values_of(batch)

    assert values["extend_seq_lens"] == [3, 1, 1, 1]
    assert values["extend_prefix_lens"] == [0, 0, 4, 6]
    assert isinstance(batch.extend_seq_lens, torch.Tensor)
    assert batch.extend_seq_lens.device == batch.seq_lens.device


def test_mix_without_a_mirror_has_none(device: torch.device) -> None:
    """Prompts whose lengths the host has do not make up for the others'."""
    batch = _mixed(*make_memory(device))

    values = values_of(batch)

    assert [values[name] for name in HOST_LENGTHS] == [None, None, None]
    assert values["seq_lens"] == [3, 1, 5, 7]


def test_mix_without_a_mirror_places_every_token() -> None:
    """The forward's positions and slots are those that a mirror would have given."""
    memory, staging = make_memory()
    batch = _mixed(memory, staging)
    relay = make_relay(staging)
    relay.resolve_future(batch)

    forward = ForwardBatch.init_new(batch, staging)

    slots = [table_of(memory, row)[place] for row, place in ((4, 0), (1, 4), (2, 6))]
    assert forward.positions.tolist() == [0, 1, 2, 0, 4, 6]
    assert forward.out_cache_loc.tolist() == [*table_of(memory, 3), *slots]
    assert forward.extend_seq_lens_cpu is forward.extend_prefix_lens_cpu is None
    assert (forward.seq_lens_cpu, forward.seq_lens_sum) == (None, None)


def test_mix_with_bounds_keeps_a_bound_of_every_request() -> None:
    """A prompt's own length is its bound, beside the bounds of decode rows."""
    memory, staging = make_memory()
    running = _bounded(_decoding(memory, staging, 4, 6), 9, 8)
    running.make_plain()
    batch = make_batch(memory, staging, 3, first=3)

    batch.mix_with_running(running)

    assert values_of(batch)["seq_lens_cpu_upper_bound"] == [3, 10, 9]
    assert batch.seq_lens_cpu is None


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
    memory, staging = make_memory()
    requests = [make_request(1, range(10, 15)), make_request(2, range(20, 23))]
    enter(memory, *requests)

    batch = ScheduleBatch.prepare_for_extend(requests, num_tokens, memory, staging)

    assert batch.next_prompt_ids == expected


def test_decode_rows_of_a_mixed_batch_have_no_prompt_to_go_on_by() -> None:
    """Behind the prompts' next tokens there is a gap for each decode row."""
    memory, staging = make_memory()
    running = _decoding(memory, staging, 4, 6)
    running.make_plain()
    request = make_request(3, range(10, 15))
    enter(memory, request)
    batch = ScheduleBatch.prepare_for_extend([request], [2], memory, staging)

    batch.mix_with_running(running)

    assert batch.next_prompt_ids == (12, -1, -1)


def test_prompt_has_room_for_what_its_step_writes_behind_it() -> None:
    """Slots behind a stretch are given with it, and are no part of its length."""
    memory, staging = make_memory(page_size=4)
    request = make_request(prompt=range(10, 18))
    enter(memory, request)

    batch = ScheduleBatch.prepare_for_extend([request], [8], memory, staging, num_slots_behind=1)

    assert memory.num_pages(request.row) == 3
    assert batch.seq_lens.tolist() == [8]


def _filtered(batch: ScheduleBatch, _other: ScheduleBatch) -> ScheduleBatch:
    batch.filter([1])
    return batch


def _merged(batch: ScheduleBatch, other: ScheduleBatch) -> ScheduleBatch:
    batch.merge(other)
    return batch


def _stepped(batch: ScheduleBatch, _other: ScheduleBatch) -> ScheduleBatch:
    batch.make_plain()
    return batch


CHANGES = [
    pytest.param(_filtered, id="filter"),
    pytest.param(_merged, id="merge"),
    pytest.param(lambda batch, other: _merged(other, batch), id="merge into another"),
    pytest.param(_stepped, id="plain step"),
    pytest.param(lambda batch, _: batch.copy(), id="copy"),
]


@pytest.mark.parametrize("change", CHANGES)
def test_absence_survives(change: Callable[[ScheduleBatch, ScheduleBatch], ScheduleBatch]) -> None:
    """Whatever becomes of a batch without a mirror, it has none afterwards, and no bound."""
    memory, staging = make_memory()
    batch = _decoding(memory, staging, 2, 3)
    other = make_batch(memory, staging, 4, first=3)

    changed = change(batch, other)

    values = values_of(changed)
    assert [values[name] for name in HOST_LENGTHS] == [None, None, None]


def test_bounds_survive_what_the_mirror_lacks() -> None:
    """Through filter, merge and copy the bounds stay with their requests."""
    memory, staging = make_memory()
    batch = _bounded(_decoding(memory, staging, 2, 3, 5), 9, 8, 7)
    batch.filter([0, 2])

    batch.merge(make_batch(memory, staging, 4, first=4))

    assert values_of(batch.copy())["seq_lens_cpu_upper_bound"] == [9, 7, 4]
    assert batch.seq_lens.tolist() == [2, 5, 4]


def test_merge_into_nobody_keeps_the_bounds() -> None:
    """An empty batch, which has a mirror of nobody, takes in what another one has."""
    memory, staging = make_memory()
    running = ScheduleBatch.empty(memory, staging)

    running.merge(_bounded(_decoding(memory, staging, 2, 3), 9, 8))

    assert values_of(running)["seq_lens_cpu_upper_bound"] == [9, 8]
    assert running.seq_lens_cpu is None


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
    memory, staging = make_memory()
    batch = make_batch(memory, staging, 2, 3)
    make_relay(staging).resolve_future(batch)
    batch.seq_lens_cpu = None if mirror is None else torch.tensor(mirror)
    batch.seq_lens_cpu_upper_bound = None if bound is None else torch.tensor(bound)

    forward = ForwardBatch.init_new(batch, staging)

    found = forward.seq_lens_cpu_upper_bound
    assert (None if found is None else found.tolist()) == expected


def test_step_keeps_the_draft_state_of_its_batch() -> None:
    """A step's copy has the state that was made for it, and the next step another one."""
    memory, staging = make_memory()
    batch = make_batch(memory, staging, 2, 3)
    steps = []

    for _ in range(3):
        batch.prepare_for_speculation([9, 10], DraftState())
        steps.append(batch.copy())

    assert all(one.spec_info is not two.spec_info for one, two in pairwise(steps))


def test_relay_fills_the_state_of_a_step() -> None:
    """Its tokens are those of the requests' rows."""
    memory, staging = make_memory()
    batch, state = make_batch(memory, staging, 2, 3), DraftState()
    batch.prepare_for_speculation([9, 10], state)
    relay = make_relay(staging, speculative=True)
    relay.stash(torch.arange(16), RelayPayload(torch.arange(100, 116)))

    relay.resolve_future(batch)

    assert state.bonus_tokens is not None
    assert state.bonus_tokens.tolist() == [101, 102]
    assert state.topk_p is state.topk_index is state.hidden_states is None
