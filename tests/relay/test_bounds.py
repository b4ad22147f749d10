from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from backend_caps.relay.bounds import LengthBounds
from tests.relay.batches import numbers

ACCEPT = 4
NUM_ROWS = 5
CONTEXT = 20


def test_commit_ends_one_step_in_flight() -> None:
    """A processed step is no longer in flight, and its length is known."""
    bounds = opened(row=1, length=10)
    bounds.launch(numbers([1]))
    bounds.launch(numbers([1]))

    bounds.commit(numbers([1]), numbers([12]), numbers([0]))

    assert bounds.launch(numbers([1])).tolist() == [12 + ACCEPT]


def test_late_commit_of_the_previous_request_changes_nothing() -> None:
    """A step of a request that has left its row does not lower the bound of the next one."""
    bounds = opened(row=1, length=10)
    bounds.launch(numbers([1]))
    bounds.commit(numbers([1]), numbers([500]), numbers([1]))
    bounds.launch(numbers([1]))

    bounds.commit(numbers([1]), numbers([13]), numbers([0]))

    assert bounds.launch(numbers([1])).tolist() == [500 + ACCEPT]


def test_repeated_commit_ends_no_other_step() -> None:
    """A commit that comes twice is counted once."""
    bounds = opened(row=1, length=10)
    bounds.launch(numbers([1]))
    bounds.launch(numbers([1]))

    for _ in range(2):
        bounds.commit(numbers([1]), numbers([12]), numbers([0]))

    assert bounds.launch(numbers([1])).tolist() == [12 + ACCEPT]


def test_commits_out_of_order_keep_the_later_length() -> None:
    """An older step's length, processed late, does not lower the bound."""
    bounds = opened(row=1, length=10)
    bounds.launch(numbers([1]))
    bounds.launch(numbers([1]))

    bounds.commit(numbers([1]), numbers([14]), numbers([0]))
    bounds.commit(numbers([1]), numbers([12]), numbers([0]))

    assert bounds.launch(numbers([1])).tolist() == [14 + ACCEPT]


def test_late_commit_of_the_prefill_ends_no_step() -> None:
    """A generation is open with its whole prompt, so a prefill's result does not grow it."""
    bounds = opened(row=1, length=10)
    bounds.launch(numbers([1]))

    for chunk in (4, 8, 10):
        bounds.commit(numbers([1]), numbers([chunk]), numbers([0]))

    assert bounds.launch(numbers([1])).tolist() == [10 + ACCEPT]


def test_plain_step_is_in_flight_until_it_is_processed() -> None:
    """A plain decode step is counted, and its commit ends it like any other's."""
    bounds = opened(row=1, length=10)
    bounds.count(numbers([1]))
    bounds.launch(numbers([1]))

    bounds.commit(numbers([1]), numbers([11]), numbers([0]))

    assert bounds.launch(numbers([1])).tolist() == [11 + ACCEPT]


def test_prompt_committed_again_before_a_step_is_harmless() -> None:
    """A chunked prompt grows with no step in flight, and nothing is counted below zero."""
    bounds = opened(row=1, length=10)

    bounds.commit(numbers([1]), numbers([20]), numbers([0]))
    bounds.launch(numbers([1]))

    assert bounds.launch(numbers([1])).tolist() == [20 + ACCEPT]


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
    bounds = opened(row=2, length=8)

    assert bounds.launch(numbers([2]).to(torch.int32)).tolist() == [8]


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
