"""The scheduler's side of speculative decoding: bounds of what is not known yet."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from backend_caps.capability.vocabulary import HostSeqLens
from backend_caps.relay import FutureMap
from backend_caps.runtime.batch import ForwardMode, ScheduleBatch
from backend_caps.runtime.speculation import Algorithm, SpecSettings
from backend_caps.runtime.speculative.runner import SpeculativeDecoding
from backend_caps.runtime.stats import StepClock
from tests.runtime.memories import make_batch, make_memory, table_of, values_of

SETTINGS = SpecSettings(algorithm=Algorithm.EAGLE, topk=1, num_steps=2, num_draft_tokens=3)
"""A step accepts 3 tokens at most, and writes to 4 slots."""


def _speculation(
    level: HostSeqLens = HostSeqLens.NONE, *, overlapped: bool = True
) -> tuple[SpeculativeDecoding, FutureMap]:
    """Make the scheduler's side, and its relay, of which the host has so much."""
    relay = FutureMap(
        pool_size=9,
        device="cpu",
        host_seq_lens=level,
        speculative=True,
        accept_tokens=SETTINGS.accept_tokens,
    )
    return SpeculativeDecoding(SETTINGS, relay, overlapped=overlapped), relay


def _published(relay: FutureMap, batch: ScheduleBatch, *lengths: int) -> None:
    """Publish lengths as a step's verify does."""
    relay.publish(batch.req_pool_indices, torch.tensor(lengths))


def _scene(
    level: HostSeqLens, *, overlapped: bool = True
) -> tuple[SpeculativeDecoding, FutureMap, ScheduleBatch]:
    """Make two requests whose prompts of 4 and 6 tokens were launched, and published."""
    decoding, relay = _speculation(level, overlapped=overlapped)
    batch = make_batch(make_memory(), 4, 6)
    decoding.enter(batch.requests)
    _published(relay, batch, 4, 6)
    return decoding, relay, batch


def _prepare(decoding: SpeculativeDecoding, batch: ScheduleBatch) -> StepClock:
    """Build a step, and count it as the scheduler does."""
    clock = StepClock(1.0)
    decoding.prepare(batch, clock)
    for request in batch.requests:
        request.num_steps_under_way += 1
    return clock


def _take(batch: ScheduleBatch, *tokens: Sequence[int]) -> None:
    """Hand each request what a step made for it."""
    for request, own in zip(batch.requests, tokens, strict=True):
        request.take_step(own)


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [(Algorithm.EAGLE, False), (Algorithm.STANDALONE, False), (Algorithm.NGRAM, True)],
)
def test_only_drafts_of_the_host_follow_results(algorithm: Algorithm, *, expected: bool) -> None:
    """What is looked up on the host continues tokens that it has to have."""
    settings = SpecSettings(algorithm=algorithm, topk=1, num_steps=2, num_draft_tokens=3)
    _, relay = _speculation()

    assert SpeculativeDecoding(settings, relay, overlapped=True).follows_results is expected


@pytest.mark.parametrize(
    ("num_under_way", "made", "expected"),
    [
        pytest.param(0, [], [8, 10], id="behind the prompt"),
        pytest.param(1, [], [11, 13], id="a step under way"),
        pytest.param(2, [], [14, 16], id="two steps under way"),
        pytest.param(1, [[9], [9]], [11, 13], id="the prompt's token"),
        pytest.param(1, [[9, 8, 7], [9, 8]], [13, 14], id="a step that was processed"),
    ],
)
def test_reach_is_as_if_everything_under_way_were_accepted(
    num_under_way: int, made: list[list[int]], expected: list[int]
) -> None:
    """A step may start behind all that those before it can accept, and writes 4 slots there."""
    decoding, _, batch = _scene(HostSeqLens.NONE)
    for request, own in zip(batch.requests, made or [[], []], strict=True):
        request.output = own
        request.num_steps_under_way = num_under_way

    assert decoding.reach(batch) == expected


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        pytest.param(HostSeqLens.NONE, (None, None), id="none"),
        pytest.param(HostSeqLens.UPPER_BOUND, (None, [7, 9]), id="upper bound"),
        pytest.param(HostSeqLens.EXACT, ([6, 7], [6, 7]), id="exact"),
    ],
)
def test_prepare_takes_lengths_from_the_device(
    level: HostSeqLens, expected: tuple[object, object]
) -> None:
    """The device has the lengths that were published last, and the host what the plan says.

    That is nothing, or a bound that counts the step under way, or the lengths themselves.
    """
    decoding, relay, batch = _scene(level)
    _prepare(decoding, batch)
    _published(relay, batch, 6, 7)

    _prepare(decoding, batch)

    values = values_of(batch)
    assert (values["seq_lens_cpu"], values["seq_lens_cpu_upper_bound"]) == expected
    assert (values["seq_lens"], batch.mode) == ([6, 7], ForwardMode.DECODE)


def test_bound_is_that_of_the_lengths_that_decode_starts_from() -> None:
    """A request enters with its whole prompt, though a chunk of it alone was launched."""
    decoding, _ = _speculation(HostSeqLens.UPPER_BOUND)
    memory = make_memory()
    batch = make_batch(memory, 4, 6)
    for request in batch.requests:
        request.num_prefilled = 1

    decoding.enter(batch.requests)
    _prepare(decoding, batch)

    assert values_of(batch)["seq_lens_cpu_upper_bound"] == [4, 6]


def test_bound_is_tightened_by_what_was_committed() -> None:
    """A processed step's length replaces what it might have been."""
    decoding, relay, batch = _scene(HostSeqLens.UPPER_BOUND)
    for lengths in ((5, 9), (6, 10)):
        _prepare(decoding, batch)
        _published(relay, batch, *lengths)
    _take(batch, [9], [9])
    decoding.commit(batch.requests)
    _take(batch, [8], [8, 7, 6])

    decoding.commit(batch.requests)
    _prepare(decoding, batch)

    assert values_of(batch)["seq_lens_cpu_upper_bound"] == [8, 12]


def test_bound_of_a_row_is_opened_anew_by_its_next_request() -> None:
    """Who enters a row while a step of the request before is under way has its own bound."""
    decoding, _, batch = _scene(HostSeqLens.UPPER_BOUND)
    memory = batch.memory
    _prepare(decoding, batch)
    left = batch.requests[1]
    memory.release(left.row)

    other = make_batch(memory, 3, first=3)
    decoding.enter(other.requests)
    decoding.commit([left])
    _prepare(decoding, other)

    assert other.requests[0].row == left.row
    assert values_of(other)["seq_lens_cpu_upper_bound"] == [3]


@pytest.mark.parametrize(
    ("level", "overlapped", "expected"),
    [
        pytest.param(HostSeqLens.NONE, True, 0, id="none"),
        pytest.param(HostSeqLens.UPPER_BOUND, True, 0, id="upper bound"),
        pytest.param(HostSeqLens.EXACT, True, 2, id="exact"),
        pytest.param(HostSeqLens.NONE, False, 0, id="plain loop"),
    ],
)
def test_clock_counts_lengths_that_the_host_waits_for(
    level: HostSeqLens, overlapped: bool, expected: int
) -> None:
    """The host waits for lengths where the relay brings them, and nowhere else."""
    decoding, _, batch = _scene(level, overlapped=overlapped)

    clock = _prepare(decoding, batch)

    assert clock.num_lengths == expected
    assert 1.0 < clock.built_s <= clock.lengths_s


def test_plain_loop_has_the_lengths_by_itself() -> None:
    """Every result was processed, so the mirror is what the requests have committed."""
    decoding, relay, batch = _scene(HostSeqLens.NONE, overlapped=False)
    _take(batch, [9], [9])
    _prepare(decoding, batch)
    _published(relay, batch, 6, 7)
    _take(batch, [8, 7], [8])

    _prepare(decoding, batch)

    assert batch.seq_lens.tolist() == batch.mirror.tolist() == [6, 7]


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        pytest.param(HostSeqLens.NONE, (None, None), id="none"),
        pytest.param(HostSeqLens.UPPER_BOUND, (None, [8, 10]), id="upper bound"),
        pytest.param(HostSeqLens.EXACT, ([7, 8], [7, 8]), id="exact"),
    ],
)
def test_mixed_rows_are_bound_late(level: HostSeqLens, expected: tuple[object, object]) -> None:
    """Their lengths and slots come from what was published, with a token more."""
    decoding, relay, batch = _scene(level)
    _prepare(decoding, batch)
    _published(relay, batch, 6, 7)

    decoding.prepare_mixed(batch, StepClock(1.0))

    values = values_of(batch)
    assert (values["seq_lens_cpu"], values["seq_lens_cpu_upper_bound"]) == expected
    assert (values["seq_lens"], values["spec_info"]) == ([7, 8], None)
    assert values["out_cache_loc"] == [table_of(batch.memory, row)[row + 5] for row in (1, 2)]
