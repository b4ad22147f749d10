from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from backend_caps.capability.vocabulary import HostSeqLens
from backend_caps.relay import FutureMap, RelayError
from backend_caps.relay.host_lengths import LengthBounds
from tests.relay.batches import decode_batch, listed, make_map, numbers, prefill_batch, spec_batch


def bound_of(fm: FutureMap, rows: list[int], device: torch.device | str = "cpu") -> list[int]:
    """Resolve a speculative step of some rows, and return its bounds."""
    batch = spec_batch(rows, device)
    fm.resolve_seq_lens_cpu(batch)
    return listed(batch.seq_lens_cpu_upper_bound)


MODES = [
    pytest.param(HostSeqLens.NONE, (None, None, None), id="none"),
    pytest.param(HostSeqLens.UPPER_BOUND, (None, None, [10, 20]), id="upper bound"),
    pytest.param(HostSeqLens.EXACT, ([10, 20], 30, [10, 20]), id="exact"),
]


@pytest.mark.parametrize(("mode", "expected"), MODES)
def test_host_fields_follow_the_mode(
    device: torch.device, mode: HostSeqLens, expected: tuple[object, ...]
) -> None:
    """Each mode sets every host field, so that no value of an earlier step survives."""
    fm = make_map(device, mode)
    batch = spec_batch([1, 2], device)
    fm.commit_lengths(numbers([1, 2]), numbers([10, 20]), numbers([0, 0]))
    fm.publish(batch.req_pool_indices, numbers([10, 20], device))

    fm.resolve_seq_lens_cpu(batch)

    mirror, bound = batch.seq_lens_cpu, batch.seq_lens_cpu_upper_bound
    found = (mirror, batch.seq_lens_sum, bound)
    assert tuple(x.tolist() if isinstance(x, torch.Tensor) else x for x in found) == expected


@pytest.mark.parametrize("mode", list(HostSeqLens))
def test_device_lengths_are_gathered_in_every_mode(device: torch.device, mode: HostSeqLens) -> None:
    """The lengths on the device advance whatever the host receives."""
    fm = make_map(device, mode)
    batch = spec_batch([2], device)
    fm.publish(batch.req_pool_indices, numbers([9], device))

    fm.resolve_seq_lens_cpu(batch)

    assert batch.seq_lens.tolist() == [9]


@pytest.mark.parametrize("num_rows", [1, 96, 97, 500])
def test_mirror_sum_is_the_lengths_sum(device: torch.device, num_rows: int) -> None:
    """The sum is that of the lengths, for short batches and for long ones."""
    fm = make_map(device, pool_size=512)
    batch = spec_batch(range(1, num_rows + 1), device)
    fm.publish(batch.req_pool_indices, batch.req_pool_indices * 2**33)

    fm.resolve_seq_lens_cpu(batch)

    assert batch.seq_lens_sum == 2**33 * num_rows * (num_rows + 1) // 2


@pytest.mark.parametrize("mode", [True, False, None])
def test_mode_is_not_a_bool(mode: HostSeqLens) -> None:
    """A flag of another meaning is refused; it would otherwise pick a mode unseen."""
    with pytest.raises(RelayError, match=f"host_seq_lens is {mode}; HostSeqLens.NONE"):
        make_map(host_seq_lens=mode)


def test_upper_bound_counts_steps_in_flight(device: torch.device) -> None:
    """Each step that is launched and not processed raises the bound by what it can accept."""
    fm = make_map(device, HostSeqLens.UPPER_BOUND)
    fm.commit_lengths(numbers([1]), numbers([100]), numbers([0]))

    assert [bound_of(fm, [1], device) for _ in range(3)] == [[100], [103], [106]]


def test_upper_bound_is_clamped_to_the_width_of_a_row(device: torch.device) -> None:
    """No step starts above the width of a row, so no bound is above it."""
    fm = make_map(device, HostSeqLens.UPPER_BOUND, max_context_len=101)
    fm.commit_lengths(numbers([1]), numbers([100]), numbers([0]))

    assert [bound_of(fm, [1], device) for _ in range(2)] == [[100], [101]]


def test_upper_bound_without_accept_tokens_is_an_error() -> None:
    """Nobody can bound a length without knowing how far one step goes."""
    with pytest.raises(RelayError, match=r"DraftShape\(accept_tokens=\.\.\.\)"):
        FutureMap(
            pool_size=4, device="cpu", host_seq_lens=HostSeqLens.UPPER_BOUND, speculative=True
        )


@pytest.mark.parametrize("accept_tokens", [0, -1])
@pytest.mark.parametrize("mode", list(HostSeqLens))
def test_accept_tokens_below_one_are_an_error(mode: HostSeqLens, accept_tokens: int) -> None:
    """Every step accepts its bonus token: with less, a bound would fall below the truth."""
    expected = f"accept_tokens is {accept_tokens}; at least 1 was expected"

    with pytest.raises(RelayError, match=expected):
        FutureMap(
            pool_size=4,
            device="cpu",
            host_seq_lens=mode,
            speculative=True,
            accept_tokens=accept_tokens,
        )


def test_plain_steps_count_for_the_bound(device: torch.device) -> None:
    """A plain decode step adds a token, so a speculative step behind it has a higher bound."""
    fm = make_map(device, HostSeqLens.UPPER_BOUND)
    fm.commit_lengths(numbers([1, 2]), numbers([100, 200]), numbers([0, 0]))

    fm.count_plain_step(decode_batch([1], device))

    assert bound_of(fm, [1, 2], device) == [103, 200]


def test_what_is_counted_elsewhere_counts_no_plain_step() -> None:
    """Neither marking ids as pending nor a batch whose lengths are relayed is a plain step."""
    fm = make_map(host_seq_lens=HostSeqLens.UPPER_BOUND)
    fm.commit_lengths(numbers([1]), numbers([100]), numbers([0]))

    fm.set_input_ids_sentinel(decode_batch([1]))
    fm.count_plain_step(spec_batch([1]))

    assert bound_of(fm, [1]) == [100]


@pytest.mark.parametrize(("running", "expected"), [([2], [100, 203]), (None, [100, 200])])
def test_mixed_decode_rows_count_for_the_bound(
    running: list[int] | None, expected: list[int]
) -> None:
    """Of a prefill's rows only the decode rows mixed in take a decode step."""
    fm = make_map(host_seq_lens=HostSeqLens.UPPER_BOUND)
    fm.commit_lengths(numbers([1, 2]), numbers([100, 200]), numbers([0, 0]))

    fm.count_plain_step(prefill_batch([1, 2], [5], running))

    assert bound_of(fm, [1, 2]) == expected


def test_upper_bound_without_a_draft_takes_accept_tokens() -> None:
    """A draft without relayed state (NGRAM) gives its step's reach by itself."""
    fm = FutureMap(
        pool_size=4,
        device="cpu",
        host_seq_lens=HostSeqLens.UPPER_BOUND,
        speculative=True,
        accept_tokens=5,
    )
    fm.commit_lengths(numbers([1]), numbers([7]), numbers([0]))

    assert [bound_of(fm, [1]) for _ in range(2)] == [[7], [12]]


@pytest.mark.parametrize("mode", [HostSeqLens.NONE, HostSeqLens.EXACT])
def test_commit_lengths_is_a_no_op_without_bounds(mode: HostSeqLens) -> None:
    """An engine may commit in every mode; only bounds are made of it."""
    fm = make_map(host_seq_lens=mode)
    batch = spec_batch([1])
    fm.publish(batch.req_pool_indices, numbers([5]))

    fm.commit_lengths(numbers([1]), numbers([500]), numbers([0]))
    fm.resolve_seq_lens_cpu(batch)

    assert batch.seq_lens.tolist() == [5]


ACCEPT = 4
NUM_ROWS = 5
CONTEXT = 20


LAUNCH, COUNT = "launch", "count"
STEPS = [
    pytest.param([LAUNCH, LAUNCH, (12, 0)], 12 + ACCEPT, id="a processed step is not in flight"),
    pytest.param(
        [LAUNCH, (500, 1), LAUNCH, (13, 0)],
        500 + ACCEPT,
        id="a late step of the request before changes nothing",
    ),
    pytest.param(
        [LAUNCH, LAUNCH, (12, 0), (12, 0)], 12 + ACCEPT, id="a commit that comes twice counts once"
    ),
    pytest.param(
        [LAUNCH, LAUNCH, (14, 0), (12, 0)], 14 + ACCEPT, id="an older step lowers no bound"
    ),
    pytest.param(
        [LAUNCH, (4, 0), (8, 0), (10, 0)], 10 + ACCEPT, id="chunks of the prompt end no step"
    ),
    pytest.param([COUNT, LAUNCH, (11, 0)], 11 + ACCEPT, id="a plain step is in flight too"),
    pytest.param([(20, 0), LAUNCH], 20 + ACCEPT, id="a prompt that grows counts nothing below 0"),
]
"""Calls for a row that is open with 10 tokens: of a commit, length and generation."""


@pytest.mark.parametrize(("calls", "bound"), STEPS)
def test_bound_follows_launches_and_commits(calls: list[str | tuple[int, int]], bound: int) -> None:
    """It is the last committed length, and what the steps in flight can accept."""
    bounds = opened(row=1, length=10)
    for call in calls:
        match call:
            case (length, generation):
                bounds.commit(numbers([1]), numbers([length]), numbers([generation]))
            case "launch":
                bounds.launch(numbers([1]))
            case _:
                bounds.count(numbers([1]))

    assert bounds.launch(numbers([1])).tolist() == [bound]


def test_first_generation_opens_its_row() -> None:
    """Generation 0 is a stay like any other: steps of nobody before it are not its own."""
    bounds = LengthBounds(NUM_ROWS, ACCEPT, None)
    bounds.launch(numbers([1]))
    bounds.launch(numbers([1]))

    bounds.commit(numbers([1]), numbers([10]), numbers([0]))

    assert bounds.launch(numbers([1])).tolist() == [10]


def test_padding_row_counts_no_steps() -> None:
    """Row 0 pads every batch, and its bound does not grow with them."""
    bounds = LengthBounds(NUM_ROWS, ACCEPT, None)

    bounds.launch(numbers([0, 0]))
    bounds.launch(numbers([0, 1, 0]))

    assert bounds.launch(numbers([0])).tolist() == [0]


def test_launch_takes_int32_rows() -> None:
    """The host's index may be int32."""
    assert opened(row=2, length=8).launch(numbers([2]).to(torch.int32)).tolist() == [8]


def opened(*, row: int, length: int) -> LengthBounds:
    """Make bounds with one row open."""
    bounds = LengthBounds(NUM_ROWS, ACCEPT, None)
    bounds.commit(numbers([row]), numbers([length]), numbers([0]))
    return bounds


@dataclass
class Request:
    """A request in its row, as the device sees it."""

    generation: int
    length: int
    prompt: int
    steps: int = 0
    """Launched and not yet processed."""
    processed: int = 0
    """The longest length that the host has seen."""


@dataclass
class Result:
    """A step's result, on its way to the host."""

    rows: list[int]
    lens: list[int]
    generations: list[int]


@dataclass
class Server:
    """A scheduler that admits, launches, processes late and recycles rows, and the truth."""

    random: random.Random
    context: int | None
    """Where requests end, once the host sees it; None is nowhere."""
    faults: bool
    requests: dict[int, Request] = field(default_factory=dict)
    results: deque[Result] = field(default_factory=deque)
    next_generation: int = 0

    def __post_init__(self) -> None:
        # A step in flight while the host learns of the end takes the next above the context.
        width = None if self.context is None else self.context + ACCEPT
        self.bounds = LengthBounds(NUM_ROWS, ACCEPT, width)

    def admit(self) -> None:
        """Give a row to a new request, whether or not steps of the last one are in flight."""
        row = self.random.randrange(1, NUM_ROWS)
        prompt = self.random.randint(1, CONTEXT - 1)
        request = Request(self.next_generation, prompt, prompt)
        self.next_generation += 1
        self.requests[row] = request
        lens, generations = numbers([request.length]), numbers([request.generation])
        self.bounds.commit(numbers([row]), lens, generations)

    def launch(self) -> None:
        """Launch a step, and hold its bounds against the truth."""
        rows = self.draw_rows()
        bounds = self.bounds.launch(numbers(rows)).tolist()
        for row, bound in zip(rows, bounds, strict=True):
            self.check(self.requests[row], bound)
        self.step(rows, ACCEPT)

    def launch_plain(self) -> None:
        """Launch a plain decode step, which has no bounds and adds a token."""
        rows = self.draw_rows()
        self.bounds.count(numbers(rows))
        self.step(rows, 1)

    def prefill_late(self) -> None:
        """Commit a prefill's result when its generation is open already, against the protocol."""
        for row, request in self.requests.items():
            prompt, generation = numbers([request.prompt]), numbers([request.generation])
            self.bounds.commit(numbers([row]), prompt, generation)

    def draw_rows(self) -> list[int]:
        """Draw requests that the host takes for running; with a context one step may be behind."""
        alive = sorted(self.requests)
        if self.context is not None:
            alive = [row for row in alive if self.is_running(self.requests[row], self.context)]
        return self.random.sample(alive, self.random.randint(0, len(alive)))

    def is_running(self, request: Request, context: int) -> bool:
        """Tell whether an overlapped loop launches another step of a request."""
        return request.processed < context and request.steps <= 1

    def check(self, request: Request, bound: int) -> None:
        """A bound is never below the truth, and exact where nothing is in flight."""
        assert bound >= request.length
        if not self.faults:
            assert bound <= request.length + request.steps * (ACCEPT - 1)

    def step(self, rows: list[int], accept: int) -> None:
        """Accept tokens on the device."""
        for row in rows:
            self.requests[row].length += self.random.randint(1, accept)
            self.requests[row].steps += 1
        live = [self.requests[row] for row in rows]
        generations = [request.generation for request in live]
        self.results.append(Result(rows, [request.length for request in live], generations))

    def process(self) -> None:
        """Commit a step's result: the oldest, or with faults any, again, or never."""
        if not self.results:
            return
        place = self.random.randrange(len(self.results)) if self.faults else 0
        result = self.results[place]
        if not (self.faults and self.random.random() < 0.2):
            rows, lens = numbers(result.rows), numbers(result.lens)
            self.bounds.commit(rows, lens, numbers(result.generations))
        if not (self.faults and self.random.random() < 0.2):
            del self.results[place]
            self.count_processed(result)

    def count_processed(self, result: Result) -> None:
        """Take the step off its requests, where they still hold their rows."""
        lines = zip(result.rows, result.lens, result.generations, strict=True)
        for row, length, generation in lines:
            request = self.requests[row]
            if request.generation == generation:
                request.steps -= 1
                request.processed = max(request.processed, length)


@pytest.mark.parametrize("faults", [False, True], ids=["in order", "late, twice or never"])
@given(seed=st.integers(0, 2**32), clamped=st.booleans())
def test_bound_is_never_below_the_truth(*, faults: bool, seed: int, clamped: bool) -> None:
    """Whatever is recycled and however late results come, no length is above its bound."""
    draw = random.Random(seed)  # noqa: S311 - a trace, not a secret
    server = Server(draw, CONTEXT if clamped else None, faults)
    launches = (server.launch, server.launch, server.launch_plain)
    actions = (server.admit, *launches, server.process, server.prefill_late)

    for _ in range(40):
        draw.choice(actions)()
