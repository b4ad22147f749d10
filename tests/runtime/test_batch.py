from __future__ import annotations

import pytest
import torch

from backend_caps.capability.kind import Phase
from backend_caps.runtime.batch import ForwardMode, ScheduleBatch
from backend_caps.runtime.errors import OutOfPagesError
from tests.runtime.memories import enter, make_batch, make_memory, make_request, table_of, values_of


@pytest.mark.parametrize(
    ("mode", "phase"),
    [
        (ForwardMode.EXTEND, Phase.PREFILL),
        (ForwardMode.MIXED, Phase.PREFILL),
        (ForwardMode.DECODE, Phase.DECODE),
        (ForwardMode.VERIFY, Phase.VERIFY),
        (ForwardMode.DRAFT_EXTEND, Phase.VERIFY),
    ],
)
def test_mode_names_whose_backend_runs_it(mode: ForwardMode, phase: Phase) -> None:
    """A mixed batch is the prefill backend's: its decode rows are stretches of one token.

    What takes in drafts is verify's.
    """
    assert mode.phase is phase


def test_prepare_for_extend_leaves_tokens_on_the_host(device: torch.device) -> None:
    """Prompt tokens wait in staged memory, and the batch has no ids yet."""
    memory, staging = make_memory(device)

    batch = make_batch(memory, staging, 2, 3)

    assert batch.input_ids is None
    assert batch.prefill_input_ids_cpu is not None
    assert batch.prefill_input_ids_cpu.tolist() == [1, 1, 2, 2, 2]
    assert batch.prefill_input_ids_cpu.is_pinned() is staging.streams.traits.has_pinned_memory


def test_prepare_for_extend_continues_a_prompt(device: torch.device) -> None:
    """The next stretch of a prompt starts where the last one ended, and says so."""
    memory, staging = make_memory(device, page_size=4)
    request = make_request(prompt=range(10, 20))
    enter(memory, request)
    ScheduleBatch.prepare_for_extend([request], [3], memory, staging)

    batch = ScheduleBatch.prepare_for_extend([request], [5], memory, staging)

    assert batch.prefill_input_ids_cpu is not None
    assert batch.prefill_input_ids_cpu.tolist() == [13, 14, 15, 16, 17]
    assert (batch.extend_prefix_lens, batch.extend_seq_lens) == ((3,), (5,))
    assert batch.seq_lens.tolist() == batch.mirror.tolist() == [8]
    assert batch.out_cache_loc is not None
    assert batch.out_cache_loc.tolist() == table_of(memory, request.row)[3:8]


@pytest.mark.parametrize(("count", "samples"), [(2, False), (3, True)])
def test_prepare_for_extend_samples_where_the_prompt_ends(count: int, samples: bool) -> None:
    """A stretch makes a token only where no more of the prompt is to come."""
    memory, staging = make_memory()
    request = make_request(prompt=[5, 6, 7])
    enter(memory, request)

    batch = ScheduleBatch.prepare_for_extend([request], [count], memory, staging)

    assert batch.samples == (samples,)


def test_prepare_for_extend_changes_nothing_where_pages_run_out() -> None:
    """A prompt that does not fit has no page and no token launched."""
    memory, staging = make_memory(num_tokens=4)
    request = make_request(prompt=[5] * 5)
    enter(memory, request)

    with pytest.raises(OutOfPagesError):
        ScheduleBatch.prepare_for_extend([request], [5], memory, staging)

    assert (request.num_prefilled, memory.pages.num_free) == (0, 4)


def test_prepare_for_decode_adds_a_token_out_of_place(device: torch.device) -> None:
    """The lengths grow in new tensors; whoever holds the old ones reads what they were."""
    memory, staging = make_memory(device)
    batch = make_batch(memory, staging, 2, 3)
    seq_lens, mirror = batch.seq_lens, batch.mirror

    batch.prepare_for_decode()

    assert seq_lens.tolist() == mirror.tolist() == [2, 3]
    assert batch.seq_lens.tolist() == batch.mirror.tolist() == [3, 4]


@pytest.mark.parametrize("page_size", [1, 4])
def test_prepare_for_decode_places_tokens_behind_the_context(page_size: int) -> None:
    """The new token's slot is the one at the length before it, on a new page where one is full."""
    memory, staging = make_memory(page_size=page_size)
    batch = make_batch(memory, staging, 4, 6)

    batch.prepare_for_decode()

    assert batch.out_cache_loc is not None
    assert batch.out_cache_loc.tolist() == [table_of(memory, 1)[4], table_of(memory, 2)[6]]


def test_prepare_for_decode_changes_nothing_where_pages_run_out() -> None:
    """Where a token does not fit, the lengths are what they were."""
    memory, staging = make_memory(num_tokens=5)
    batch = make_batch(memory, staging, 2, 3)
    before = values_of(batch)

    with pytest.raises(OutOfPagesError):
        batch.prepare_for_decode()

    assert values_of(batch) == before


def test_prepare_for_decode_forgets_the_prompt() -> None:
    """Of the prompt's step nothing is left: every request brings its last token."""
    memory, staging = make_memory()
    batch = make_batch(memory, staging, 2, 3)

    batch.prepare_for_decode()

    assert batch.mode is ForwardMode.DECODE
    assert batch.samples == (True, True)
    assert batch.extend_seq_lens is batch.extend_prefix_lens is None
    assert batch.prefill_input_ids_cpu is batch.mix_running_indices is batch.input_ids is None
    assert batch.seq_lens_sum is None


def test_mix_with_running_appends_decode_rows(device: torch.device) -> None:
    """Decode rows follow the prompts' as stretches of one token, which the relay brings."""
    memory, staging = make_memory(device)
    running = make_batch(memory, staging, 4, 5)
    running.prepare_for_decode()
    batch = make_batch(memory, staging, 3, first=3)

    batch.mix_with_running(running)

    assert batch.mode is ForwardMode.MIXED
    assert (batch.extend_seq_lens, batch.extend_prefix_lens) == ((3, 1, 1), (0, 4, 5))
    assert batch.seq_lens.tolist() == batch.mirror.tolist() == [3, 5, 6]
    assert batch.mix_running_indices is running.req_pool_indices
    assert batch.samples == (True, True, True)


def test_mix_with_running_keeps_tokens_and_slots() -> None:
    """The staged tokens stay the prompts', and each token has its own slot."""
    memory, staging = make_memory()
    running = make_batch(memory, staging, 4)
    running.prepare_for_decode()
    batch = make_batch(memory, staging, 3, first=2)

    batch.mix_with_running(running)

    assert batch.prefill_input_ids_cpu is not None
    assert batch.prefill_input_ids_cpu.tolist() == [2, 2, 2]
    assert batch.out_cache_loc is not None
    assert batch.out_cache_loc.tolist() == [*table_of(memory, 2), table_of(memory, 1)[4]]


def test_filter_keeps_places_in_order(device: torch.device) -> None:
    """Every field of the kept requests stays theirs."""
    memory, staging = make_memory(device)
    batch = make_batch(memory, staging, 2, 3, 4)
    batch.seq_lens_cpu_upper_bound = torch.tensor([12, 13, 14])
    requests, rows = batch.requests, batch.req_pool_indices_cpu.tolist()

    batch.filter([0, 2])

    assert batch.requests == (requests[0], requests[2])
    assert batch.req_pool_indices.tolist() == batch.req_pool_indices_cpu.tolist() == rows[::2]
    assert batch.seq_lens.tolist() == batch.mirror.tolist() == [2, 4]
    assert batch.seq_lens_cpu_upper_bound.tolist() == [12, 14]
    assert len(batch.generations) == len(batch.samples) == 2


def test_filter_of_everything_keeps_the_step() -> None:
    """Where nobody leaves, what was prepared stays prepared."""
    memory, staging = make_memory()
    batch = make_batch(memory, staging, 2, 3)
    before = values_of(batch)

    batch.filter([0, 1])

    assert values_of(batch) == before


def test_filter_forgets_the_step_of_those_who_stay() -> None:
    """What was of the last step alone does not fit a smaller batch, and is gone."""
    memory, staging = make_memory()
    batch = make_batch(memory, staging, 2, 3)

    batch.filter([1])

    assert batch.out_cache_loc is batch.prefill_input_ids_cpu is batch.extend_seq_lens is None
    assert (batch.extend_prefix_lens, batch.seq_lens_sum) == (None, None)


def test_filter_to_nobody_leaves_an_empty_batch() -> None:
    """A batch may lose every request, and keeps a mirror of none."""
    memory, staging = make_memory()
    batch = make_batch(memory, staging, 2, 3)

    batch.filter([])

    assert batch.requests == ()
    assert batch.seq_lens.shape == batch.mirror.shape == (0,)


@pytest.mark.parametrize("without", [(0,), (1,), (0, 1)])
def test_merge_has_no_mirror_where_either_has_none(without: tuple[int, ...]) -> None:
    """Lengths that one of two batches does not know on the host, their sum does not know."""
    memory, staging = make_memory()
    both = (make_batch(memory, staging, 2), make_batch(memory, staging, 3, first=2))
    for place in without:
        both[place].seq_lens_cpu = None

    both[0].merge(both[1])

    assert both[0].seq_lens_cpu is None
    assert both[0].seq_lens.tolist() == [2, 3]


@pytest.mark.parametrize(
    ("bounds", "merged"), [(([4], [6]), [4, 6]), ((None, [6]), None), (([4], None), None)]
)
def test_merge_has_upper_bounds_where_both_have(
    bounds: tuple[list[int] | None, list[int] | None], merged: list[int] | None
) -> None:
    """Without mirrors, bounds are appended where there are two, and gone where there is one."""
    memory, staging = make_memory()
    both = (make_batch(memory, staging, 2), make_batch(memory, staging, 3, first=2))
    for batch, bound in zip(both, bounds, strict=True):
        batch.seq_lens_cpu = None
        batch.seq_lens_cpu_upper_bound = None if bound is None else torch.tensor(bound)

    both[0].merge(both[1])

    assert values_of(both[0])["seq_lens_cpu_upper_bound"] == merged


def test_filter_keeps_the_mirrors_absence() -> None:
    """A batch without a mirror has none after a filter."""
    memory, staging = make_memory()
    batch = make_batch(memory, staging, 2, 3)
    batch.seq_lens_cpu = None

    batch.filter([1])

    assert batch.seq_lens_cpu is None
    assert batch.seq_lens.tolist() == [3]


def test_mirror_is_asked_for_only_where_there_is_one() -> None:
    """Who needs the mirror where nobody keeps one is told so."""
    memory, staging = make_memory()
    batch = make_batch(memory, staging, 2)
    batch.seq_lens_cpu = None

    with pytest.raises(AssertionError, match="mirror is kept"):
        batch.prepare_for_decode()


def test_copy_keeps_what_a_step_was_given() -> None:
    """Whatever becomes of the batch, its copy has the fields and the values of before."""
    memory, staging = make_memory()
    batch = make_batch(memory, staging, 2, 3)
    batch.prepare_for_decode()
    own = batch.copy()
    before = values_of(own)

    batch.filter([1])
    batch.prepare_for_decode()
    batch.merge(make_batch(memory, staging, 4, first=3))

    assert values_of(own) == before


def test_empty_batch_is_an_idle_step(device: torch.device) -> None:
    """A batch of nobody has every tensor that a step needs, of no request."""
    memory, staging = make_memory(device)

    batch = ScheduleBatch.empty(memory, staging)

    assert (batch.mode, batch.requests, batch.seq_lens_sum) == (ForwardMode.IDLE, (), 0)
    assert batch.input_ids is not None
    assert batch.input_ids.shape == batch.seq_lens.shape == batch.mirror.shape == (0,)
    assert batch.seq_lens.device == staging.streams.device
