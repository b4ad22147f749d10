from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from backend_caps import (
    Capabilities,
    Declaration,
    Phase,
    Plan,
    Role,
    RuleSet,
    ServerFlags,
    Use,
    resolve,
)
from backend_caps.capability.vocabulary import HostSeqLens
from backend_caps.relay import DeviceStreams, DraftShape, FutureMap, RelayError, RelayPayload
from tests.relay import batches
from tests.relay.batches import listed, numbers, spec_batch
from tests.relay.fake_streams import FakeModule, FakeStreams

SPECULATIVE = ["--speculative-algorithm", "EAGLE3", "--disable-piecewise-cuda-graph"]
PLANS = [
    pytest.param(HostSeqLens.NONE, SPECULATIVE, (HostSeqLens.NONE, True), id="none"),
    pytest.param(HostSeqLens.EXACT, SPECULATIVE, (HostSeqLens.EXACT, True), id="exact"),
    pytest.param(HostSeqLens.EXACT, [], (HostSeqLens.EXACT, False), id="plain decode"),
    pytest.param(
        HostSeqLens.EXACT,
        [*SPECULATIVE, "--disable-overlap-schedule"],
        (HostSeqLens.NONE, True),
        id="no overlap",
    ),
]


def planned(needs: HostSeqLens, argv: list[str]) -> Plan:
    """Resolve a server of one backend that needs this much."""
    capabilities = Capabilities(host_seq_lens=needs, max_context_len_known=True)
    declaration = Declaration(capabilities=capabilities, implementation="my_flash:MyFlash")
    use = Use(backend="my_flash", role=Role.TARGET, phase=Phase.DECODE, declaration=declaration)
    flags = ServerFlags.from_argv(["--attention-backend", "my_flash", *argv])
    return resolve((use,), flags, rules=RuleSet.builtin("sglang-0.5.13"))


@pytest.mark.parametrize(("needs", "argv", "expected"), PLANS)
def test_map_is_what_the_plan_says(
    needs: HostSeqLens, argv: list[str], expected: tuple[HostSeqLens, bool]
) -> None:
    """The mode is the plan's; without overlap nothing crosses, and draft state is relayed."""
    fm = FutureMap.from_plan(planned(needs, argv), pool_size=4, device="cpu")

    assert (fm.host_seq_lens, fm.speculative) == expected


@pytest.mark.parametrize(
    ("draft", "expected"),
    [
        pytest.param(None, 14, id="flag"),
        pytest.param(DraftShape(topk=1), 14, id="shape without the number"),
        pytest.param(DraftShape(topk=1, accept_tokens=2), 12, id="shape"),
    ],
)
def test_bound_takes_the_most_tokens_that_a_step_can_accept(
    draft: DraftShape | None, expected: int
) -> None:
    """The draft shape says how far a step goes, or else the number of draft tokens does."""
    argv = [*SPECULATIVE, "--speculative-num-draft-tokens", "4"]
    plan = planned(HostSeqLens.UPPER_BOUND, argv)
    fm = FutureMap.from_plan(plan, pool_size=4, device="cpu", draft=draft)
    fm.commit_lengths(numbers([1]), numbers([10]), numbers([0]))
    batch = spec_batch([1])

    fm.resolve_seq_lens_cpu(batch)
    fm.resolve_seq_lens_cpu(batch)

    assert listed(batch.seq_lens_cpu_upper_bound) == [expected]


def test_bound_is_clamped_to_the_width_of_a_row() -> None:
    """An overlapped step starts above the context, and none above what SGLang gives a row."""
    argv = [*SPECULATIVE, "--speculative-num-draft-tokens", "4", "--context-length", "12"]
    fm = FutureMap.from_plan(planned(HostSeqLens.UPPER_BOUND, argv), pool_size=4, device="cpu")
    fm.commit_lengths(numbers([1]), numbers([10]), numbers([0]))
    batch = spec_batch([1])

    for _ in range(9):
        fm.resolve_seq_lens_cpu(batch)

    assert listed(batch.seq_lens_cpu_upper_bound) == [12 + 4 + 4]


def test_bound_that_nothing_says_is_an_error() -> None:
    """A plan with upper bounds and no number of draft tokens cannot be configured."""
    plan = planned(HostSeqLens.UPPER_BOUND, SPECULATIVE)

    with pytest.raises(RelayError, match="--speculative-num-draft-tokens"):
        FutureMap.from_plan(plan, pool_size=4, device="cpu")


def test_streams_reach_the_map() -> None:
    """A map of a plan works with the streams that it is given."""
    streams = DeviceStreams("cpu")

    fm = FutureMap.from_plan(
        planned(HostSeqLens.NONE, []), pool_size=4, device="cpu", streams=streams
    )

    assert fm.streams is streams


def test_debug_reaches_the_map() -> None:
    """A map of a plan checks its calls where it is asked to."""
    plan = planned(HostSeqLens.NONE, SPECULATIVE)
    fm = FutureMap.from_plan(plan, pool_size=4, device="cpu", debug=True)

    with pytest.raises(Exception, match="row 9"):
        fm.publish(numbers([9]), torch.tensor([1]))


REPEATED = (
    "was given row 3 more than once; only the padding row 0 may repeat. "
    "Give each request a row of its own."
)
OUTSIDE = (
    f"was given rows {batches.POOL_SIZE}, -1; 0 <= row < {batches.POOL_SIZE} was expected. "
    "Pass req_pool_indices of this request pool."
)
WRITERS: dict[str, Callable[[FutureMap, torch.Tensor], None]] = {
    "publish": lambda fm, rows: fm.publish(rows, batches.numbers([1, 2, 3])),
    "stash": lambda fm, rows: fm.stash(rows, batches.payload([1, 2, 3])),
}


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize(
    ("rows", "code", "expected"),
    [
        ([3, 5, 3], "repeated-rows", REPEATED),
        ([3, batches.POOL_SIZE, -1], "rows-out-of-range", OUTSIDE),
    ],
)
def test_writers_refuse_rows(name: str, rows: list[int], code: str, expected: str) -> None:
    """A row that comes twice, or that the pool does not have, is an error that names it."""
    fm = batches.make_map(debug=True)

    with pytest.raises(RelayError) as caught:
        WRITERS[name](fm, batches.numbers(rows))

    assert caught.value.code == code
    assert str(caught.value) == f"{name} {expected}"


def test_padding_is_never_poison(device: torch.device) -> None:
    """Row 0 may repeat, and a padded batch reads zeros for it: of lengths, tokens and state."""
    fm = batches.make_map(device, debug=True)
    batch = batches.spec_batch([3, 0, 0], device)

    fm.publish(batches.numbers([3, 0, 0], device), batches.numbers([30, 1, 1], device))
    for _ in range(2):
        fm.publish(batches.numbers([3], device), batches.numbers([30], device))
        fm.stash(batches.numbers([3], device), batches.payload([33], device))
        fm.resolve_seq_lens_cpu(batch)
        fm.resolve_future(batch)

    expected, state = batches.payload([33], device), batch.spec_info
    assert state is not None
    assert batch.seq_lens.tolist() == [30, 0, 0]
    assert batches.listed(state.bonus_tokens) == [33, 0, 0]
    for field in ("topk_p", "topk_index", "hidden_states"):
        row = batches.listed(getattr(expected, field))[0]
        assert batches.listed(getattr(state, field)) == [row, [0] * len(row), [0] * len(row)]


def test_stash_refuses_another_row_shape() -> None:
    """A payload has the layout's shape, whatever its first step had."""
    fm = batches.make_map(debug=True)
    wide = RelayPayload(batches.numbers([1]), hidden_states=torch.zeros(1, 8))

    with pytest.raises(RelayError, match=r"hidden_states of shape \(1, 8\); \(1, 4\) was exp"):
        fm.stash(batches.numbers([1]), wide)


def test_lengths_read_twice_are_stale() -> None:
    """A row that is resolved again with no publish between is an error."""
    fm = batches.make_map(debug=True)
    batch = batches.spec_batch([3, 5])
    fm.publish(batch.req_pool_indices, batches.numbers([30, 50]))
    fm.resolve_seq_lens_cpu(batch)
    fm.publish(batches.numbers([3]), batches.numbers([31]))

    with pytest.raises(RelayError, match=r"seq_lens of row 5 .* Call publish"):
        fm.resolve_seq_lens_cpu(batch)


def test_lengths_written_twice_are_not_stale() -> None:
    """A retracted request leaves a row that nobody read; overwriting it is legal."""
    fm = batches.make_map(debug=True)
    batch = batches.spec_batch([3])

    fm.publish(batch.req_pool_indices, batches.numbers([30]))
    fm.publish(batch.req_pool_indices, batches.numbers([4]))
    fm.resolve_seq_lens_cpu(batch)

    assert batch.seq_lens.tolist() == [4]


@pytest.mark.parametrize("mode", list(HostSeqLens))
def test_mirror_is_taken_before_the_poison(mode: HostSeqLens, device: torch.device) -> None:
    """Poisoning what was read changes neither the batch's lengths nor their mirror."""
    fm = batches.make_map(device, mode, debug=True)
    batch = batches.spec_batch([3], device)
    fm.commit_lengths(batches.numbers([3]), batches.numbers([30]), batches.numbers([0]))
    fm.publish(batch.req_pool_indices, batches.numbers([30], device))

    fm.resolve_seq_lens_cpu(batch)

    assert batch.seq_lens.tolist() == [30]
    assert batch.seq_lens_sum in (30, None)


def test_poison_follows_the_copy_stream() -> None:
    """The column is poisoned once the host has seen the copy through."""
    fm = batches.make_map(debug=True, streams=FakeStreams(FakeModule()))
    batch = batches.spec_batch([3])
    fm.publish(batch.req_pool_indices, batches.numbers([30]))

    fm.resolve_seq_lens_cpu(batch)

    assert batch.seq_lens_sum == 30


def test_lengths_refuse_two_indices() -> None:
    """A batch whose host and device rows differ would mirror other requests' lengths."""
    fm = batches.make_map(debug=True)
    batch = batches.spec_batch([3, 5])
    batch.req_pool_indices_cpu = batches.numbers([5, 3])

    with pytest.raises(RelayError) as caught:
        fm.resolve_seq_lens_cpu(batch)

    assert str(caught.value) == (
        "req_pool_indices is [3, 5] on the device and [5, 3] on the host; the same rows in the "
        "same order were expected. Filter, merge and pad both together."
    )


def test_bound_below_the_truth_is_an_error() -> None:
    """A row whose generation was never opened has no bound, and debug mode says so."""
    fm = batches.make_map(host_seq_lens=HostSeqLens.UPPER_BOUND, debug=True)
    batch = batches.spec_batch([3])
    fm.publish(batch.req_pool_indices, batches.numbers([30]))

    with pytest.raises(RelayError, match=r"lengths \[30\] of row 3 are above .* \[0\]"):
        fm.resolve_seq_lens_cpu(batch)


def test_padding_row_has_no_bound() -> None:
    """Row 0 holds whatever padding left there, which no bound is held against."""
    fm = batches.make_map(host_seq_lens=HostSeqLens.UPPER_BOUND, debug=True)
    batch = batches.spec_batch([3, 0])
    fm.commit_lengths(batches.numbers([3]), batches.numbers([30]), batches.numbers([0]))
    fm.publish(batch.req_pool_indices, batches.numbers([30, 1]))

    fm.resolve_seq_lens_cpu(batch)

    assert batch.seq_lens.tolist() == [30, 1]


READERS = [
    pytest.param(batches.pending_batch, id="decode"),
    pytest.param(lambda rows: batches.prefill_batch([1, *rows], [7], rows), id="mixed"),
    pytest.param(batches.spec_batch, id="speculative"),
]


@pytest.mark.parametrize("make_batch", READERS)
def test_tokens_read_twice_are_stale(make_batch: Callable[[list[int]], batches.Batch]) -> None:
    """A token that is read again with no stash between is an error, whoever reads it."""
    fm = batches.make_map(debug=True)
    fm.stash(batches.numbers([3, 5]), batches.payload([33, 55]))
    fm.resolve_future(make_batch([3]))

    with pytest.raises(RelayError, match=r"bonus_tokens of row 3 .* Call stash"):
        fm.resolve_future(make_batch([3, 5]))


def test_draft_state_of_an_earlier_request_is_stale() -> None:
    """A token alone, stashed to a recycled row, leaves it the draft state of who was there."""
    fm = batches.make_map(debug=True)
    fm.stash(batches.numbers([3]), batches.payload([33]))
    fm.resolve_future(batches.spec_batch([3]))
    fm.stash(batches.numbers([3]), RelayPayload(batches.numbers([34])))

    with pytest.raises(RelayError, match=r"topk_index of row 3 .* Call stash"):
        fm.resolve_future(batches.spec_batch([3]))


def test_draft_state_that_was_read_is_poison() -> None:
    """A field that is left out of the next stash shows in the values that are read."""
    fm = batches.make_map(debug=True)
    fm.stash(batches.numbers([3]), batches.payload([33]))
    fm.resolve_future(batches.spec_batch([3]))
    batch = batches.spec_batch([3])

    fm.stash(
        batches.numbers([3]),
        RelayPayload(batches.numbers([34]), topk_index=batches.numbers([1, 2])[None]),
    )
    fm.resolve_future(batch)

    assert batch.spec_info is not None
    assert torch.tensor(batches.listed(batch.spec_info.topk_p)).isnan().all()
    assert torch.tensor(batches.listed(batch.spec_info.hidden_states)).isnan().all()


@pytest.mark.parametrize("make_batch", READERS)
@pytest.mark.parametrize(
    ("rows", "code"), [([3, batches.POOL_SIZE], "rows-out-of-range"), ([3, 3], "repeated-rows")]
)
def test_resolve_future_refuses_rows(
    make_batch: Callable[[list[int]], batches.Batch], rows: list[int], code: str
) -> None:
    """What a forward reads are rows of the pool, each once."""
    fm = batches.make_map(debug=True)
    fm.stash(batches.numbers([3]), batches.payload([33]))

    with pytest.raises(RelayError, match="resolve_future was given row") as caught:
        fm.resolve_future(make_batch(rows))

    assert caught.value.code == code


def test_staged_speculative_batch_is_checked_as_both() -> None:
    """Staged ids do not hide that a draft's state is read as well."""
    fm = batches.make_map(debug=True)
    batch = batches.spec_batch([3])
    batch.prefill_input_ids_cpu = batches.numbers([7])

    with pytest.raises(RelayError, match="bonus_tokens of row 3 is read"):
        fm.resolve_future(batch)


@pytest.mark.parametrize(
    ("rows", "lens", "generation", "code"),
    [
        ([3, batches.POOL_SIZE], [1, 2], [0, 0], "rows-out-of-range"),
        ([3, 3], [1, 2], [0, 0], "repeated-rows"),
        ([3, 4], [1], [0, 0], "row-count"),
        ([3, 4], [1, 2], [0], "row-count"),
    ],
)
def test_commit_lengths_refuses_rows(
    rows: list[int], lens: list[int], generation: list[int], code: str
) -> None:
    """A commit names rows of the pool, each once, with a length and a generation."""
    fm = batches.make_map(host_seq_lens=HostSeqLens.UPPER_BOUND, debug=True)

    with pytest.raises(RelayError, match="commit_lengths was given") as caught:
        fm.commit_lengths(batches.numbers(rows), batches.numbers(lens), batches.numbers(generation))

    assert caught.value.code == code


def test_prefill_reads_no_tokens() -> None:
    """A prefill has no step before it, so nothing of its rows has to be stashed."""
    fm = batches.make_map(debug=True)
    batch = batches.prefill_batch([3], [7])

    fm.resolve_future(batch)
    fm.resolve_future(batch)

    assert batches.listed(batch.input_ids) == [7]


def test_pageable_staging_is_an_error() -> None:
    """Staged ids in pageable memory would make their copy block the host."""
    fm = batches.make_map(debug=True, streams=FakeStreams(FakeModule()))
    batch = batches.prefill_batch([3], [7])

    with pytest.raises(RelayError, match="prefill_input_ids_cpu is pageable"):
        fm.resolve_future(batch)


def test_error_names_a_few_of_many_rows() -> None:
    """A sentence about a thousand rows names eight of them."""
    fm = batches.make_map(pool_size=1001, debug=True)

    with pytest.raises(RelayError, match="rows 1, 2, 3, 4, 5, 6, 7, 8 and 992 more is read"):
        fm.resolve_seq_lens_cpu(batches.spec_batch([*range(1, 1001)]))


def test_checks_are_off_by_default(device: torch.device) -> None:
    """Outside debug mode nothing is poisoned: a row may be read again."""
    fm = batches.make_map(device)
    batch = batches.spec_batch([3], device)
    fm.publish(batch.req_pool_indices, batches.numbers([30], device))

    fm.resolve_seq_lens_cpu(batch)
    fm.resolve_seq_lens_cpu(batch)

    assert batch.seq_lens.tolist() == [30]
