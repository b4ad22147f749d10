from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from backend_caps import Phase
from backend_caps.relay import RelayError, RelayPayload
from backend_caps.runtime import ForwardBatch, OutOfPagesError, Sampling
from backend_caps.runtime.batch import ForwardMode, ScheduleBatch
from backend_caps.runtime.forward_batch import sampling_of
from backend_caps.runtime.model.sampling import SamplingBatch
from tests.property.strategies import law
from tests.runtime.memories import (
    enter,
    make_batch,
    make_memory,
    make_relay,
    make_request,
    table_of,
    values_of,
)


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
    memory = make_memory(device)

    batch = make_batch(memory, 2, 3)

    assert batch.input_ids is None
    assert batch.prefill_input_ids_cpu is not None
    assert batch.prefill_input_ids_cpu.tolist() == [1, 1, 2, 2, 2]
    has_pinned_memory = memory.staging.streams.traits.has_pinned_memory
    assert batch.prefill_input_ids_cpu.is_pinned() is has_pinned_memory


def test_prepare_for_extend_continues_a_prompt(device: torch.device) -> None:
    """The next stretch of a prompt starts where the last one ended, and says so."""
    memory = make_memory(device, page_size=4)
    request = make_request(prompt=range(10, 20))
    enter(memory, request)
    ScheduleBatch.prepare_for_extend([request], [3], memory)

    batch = ScheduleBatch.prepare_for_extend([request], [5], memory)

    assert batch.prefill_input_ids_cpu is not None
    assert batch.prefill_input_ids_cpu.tolist() == [13, 14, 15, 16, 17]
    assert (batch.extend_prefix_lens, batch.extend_seq_lens) == ((3,), (5,))
    assert batch.seq_lens.tolist() == batch.mirror.tolist() == [8]
    assert batch.out_cache_loc is not None
    assert batch.out_cache_loc.tolist() == table_of(memory, request.row)[3:8]


def test_prepare_for_extend_changes_nothing_where_pages_run_out() -> None:
    """A prompt that does not fit has no page and no token launched."""
    memory = make_memory(num_tokens=4)
    request = make_request(prompt=[5] * 5)
    enter(memory, request)

    with pytest.raises(OutOfPagesError):
        ScheduleBatch.prepare_for_extend([request], [5], memory)

    assert (request.num_prefilled, memory.pages.num_free) == (0, 4)


def test_prepare_for_decode_changes_nothing_where_pages_run_out() -> None:
    """Where a token does not fit, the lengths are what they were."""
    memory = make_memory(num_tokens=5)
    batch = make_batch(memory, 2, 3)
    before = values_of(batch)

    with pytest.raises(OutOfPagesError):
        batch.prepare_for_decode()

    assert values_of(batch) == before


def test_prepare_for_decode_forgets_the_prompt() -> None:
    """Of the prompt's step nothing is left: every request brings its last token."""
    memory = make_memory()
    batch = make_batch(memory, 2, 3)

    batch.prepare_for_decode()

    assert batch.mode is ForwardMode.DECODE
    assert batch.samples == (True, True)
    assert batch.extend_seq_lens is batch.extend_prefix_lens is None
    assert batch.prefill_input_ids_cpu is batch.mix_running_indices is batch.input_ids is None
    assert batch.seq_lens_sum is None


def test_mix_with_running_appends_decode_rows(device: torch.device) -> None:
    """Decode rows follow the prompts' as stretches of one token, which the relay brings."""
    memory = make_memory(device)
    running = make_batch(memory, 4, 5)
    running.prepare_for_decode()
    batch = make_batch(memory, 3, first=3)

    batch.mix_with_running(running)

    assert batch.mode is ForwardMode.MIXED
    assert (batch.extend_seq_lens, batch.extend_prefix_lens) == ((3, 1, 1), (0, 4, 5))
    assert batch.seq_lens.tolist() == batch.mirror.tolist() == [3, 5, 6]
    assert batch.mix_running_indices is running.req_pool_indices
    assert batch.samples == (True, True, True)


def test_filter_forgets_the_step_of_those_who_stay() -> None:
    """What was of the last step alone does not fit a smaller batch, and is gone."""
    memory = make_memory()
    batch = make_batch(memory, 2, 3)

    batch.filter([1])

    assert batch.out_cache_loc is batch.prefill_input_ids_cpu is batch.extend_seq_lens is None
    assert (batch.extend_prefix_lens, batch.seq_lens_sum) == (None, None)


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
        self._memory = make_memory(page_size=page_size, num_tokens=2048, max_requests=40)
        self.batch = ScheduleBatch.empty(self._memory)
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
        return ScheduleBatch.prepare_for_extend(requests, lengths, self._memory)

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


def _ready(batch: ScheduleBatch) -> ScheduleBatch:
    """Resolve a batch's tokens by a relay; a row's last token is 100 and its number."""
    relay = make_relay(batch.memory)
    rows = torch.arange(16, device=batch.seq_lens.device)
    relay.stash(rows, RelayPayload(rows + 100))
    if batch.mode in {ForwardMode.DECODE, ForwardMode.MIXED}:
        relay.set_input_ids_sentinel(batch)
    relay.resolve_future(batch)
    return batch


def _mixed(device: torch.device | str) -> ScheduleBatch:
    """Make a batch of prompts of 3 and 1 tokens, and a decode row at length 5."""
    memory = make_memory(device)
    running = make_batch(memory, 4)
    running.prepare_for_decode()
    batch = make_batch(memory, 3, 1, first=2)
    batch.mix_with_running(running)
    return _ready(batch)


def test_init_new_places_every_token_of_a_mixed_batch(device: torch.device) -> None:
    """Prompt tokens count from their prefix, decode tokens stand at the end of their context."""
    forward = ForwardBatch.init_new(_mixed(device))

    assert forward.input_ids.tolist() == [2, 2, 2, 3, 101]
    assert forward.positions.tolist() == [0, 1, 2, 0, 4]
    assert forward.last_token_indices is not None
    assert forward.last_token_indices.tolist() == [2, 3, 4]
    assert (forward.batch_size, forward.num_tokens) == (3, 5)


def test_init_new_keeps_host_lengths_where_the_scheduler_cut_there(device: torch.device) -> None:
    """The host's own numbers stay beside the uploaded ones; of a tensor the host has none."""
    batch = _mixed(device)
    on_device = batch.copy()
    on_device.extend_seq_lens = torch.tensor(batch.extend_seq_lens, device=device)
    on_device.extend_prefix_lens = torch.tensor(batch.extend_prefix_lens, device=device)

    forward, other = (ForwardBatch.init_new(each) for each in (batch, on_device))

    assert forward.extend_seq_lens_cpu == (3, 1, 1)
    assert forward.extend_prefix_lens_cpu == (0, 0, 4)
    assert other.extend_seq_lens_cpu is other.extend_prefix_lens_cpu is None


@pytest.mark.parametrize(
    ("mirror", "known", "expected"),
    [
        pytest.param([3, 4], 100, 100, id="somebody summed"),
        pytest.param([3, 4], None, 7, id="nobody summed"),
        pytest.param(None, None, None, id="no mirror"),
    ],
)
def test_init_new_sums_the_mirror_where_nobody_did(
    mirror: list[int] | None, known: int | None, expected: int | None
) -> None:
    """A sum that is known is kept, one that is not is made, and no mirror has none."""
    memory = make_memory()
    batch = _ready(make_batch(memory, 3, 4))
    batch.seq_lens_cpu = None if mirror is None else torch.tensor(mirror)
    batch.seq_lens_sum = known

    assert ForwardBatch.init_new(batch).seq_lens_sum == expected


def test_init_new_writes_nothing_to_the_schedulers_batch(device: torch.device) -> None:
    """Every field of the batch, and what each tensor holds, is what it was before."""
    batch = _mixed(device)
    before = values_of(batch)

    ForwardBatch.init_new(batch)

    assert values_of(batch) == before


def test_init_new_refuses_tokens_that_are_not_there() -> None:
    """Before the relay has brought the tokens, no forward is made of the batch."""
    memory = make_memory()
    batch = make_batch(memory, 3)

    with pytest.raises(RelayError, match="3 prompt tokens are staged"):
        ForwardBatch.init_new(batch)


GREEDY = Sampling(max_new_tokens=8)


def _sampling(device: torch.device | str, *wanted: Sampling) -> SamplingBatch | None:
    """Gather how a batch of requests with contexts of 3, 4, ... tokens wants its tokens."""
    memory = make_memory(device)
    batch: ScheduleBatch = make_batch(memory, *range(3, 3 + len(wanted)))
    for request, own in zip(batch.requests, wanted, strict=True):
        request.sampling = own
    return sampling_of(batch)


def test_sampling_of_tells_each_request_its_own(device: torch.device) -> None:
    """Temperature, seed, top_k and top_p of each request stand at its place."""
    own = Sampling(max_new_tokens=8, temperature=0.75, top_k=5, top_p=0.5, seed=2**63 - 1)

    sampling = _sampling(device, GREEDY, own)

    assert sampling is not None
    assert sampling.temperature.tolist() == [0.0, 0.75]
    assert sampling.seeds.tolist() == [0, 2**63 - 1]
    assert sampling.top_k is not None
    assert sampling.top_k.tolist()[1] == 5
    assert sampling.top_p is not None
    assert sampling.top_p.tolist() == [1.0, 0.5]


@pytest.mark.parametrize(
    "extreme",
    [
        pytest.param(Sampling(max_new_tokens=8, temperature=1e6), id="temperature"),
        pytest.param(Sampling(max_new_tokens=8, temperature=1.0, top_k=2**70), id="top_k"),
        pytest.param(Sampling(max_new_tokens=8, temperature=1.0, top_p=1e-12), id="top_p"),
    ],
)
def test_sampling_of_takes_whatever_sampling_lets_pass(extreme: Sampling) -> None:
    """No value that `Sampling` accepts is too large or too small for the upload."""
    assert _sampling("cpu", extreme) is not None
