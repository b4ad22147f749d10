from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend_caps.runtime import EngineOptions, Request
from backend_caps.runtime.admission import WaitingLine, choose_retractions
from backend_caps.runtime.memory import RequestMemory, num_pages_of
from tests.property.strategies import law
from tests.runtime.memories import enter, make_memory, make_request


def _line(
    memory: RequestMemory,
    *lengths: int,
    max_prefill_tokens: int = 100,
    chunked_prefill_size: int | None = None,
    num_slots_behind: int = 0,
) -> tuple[WaitingLine, list[Request]]:
    """Make a line of requests with prompts of these lengths."""
    options = EngineOptions(
        max_prefill_tokens=max_prefill_tokens, chunked_prefill_size=chunked_prefill_size
    )
    line = WaitingLine(memory, options, num_slots_behind)
    requests = [make_request(number, [7] * length) for number, length in enumerate(lengths, 1)]
    for request in requests:
        line.add(request)
    return line, requests


def _run(memory: RequestMemory, stretches: Mapping[Request, int]) -> None:
    """Do what a step does with its stretches: give them pages, and count their tokens."""
    for request, num_tokens in stretches.items():
        memory.grow([request.row], [request.num_prefilled + num_tokens])
        request.num_prefilled += num_tokens


def _counts(stretches: Mapping[Request, int]) -> list[tuple[int, int]]:
    return [(request.number, num_tokens) for request, num_tokens in stretches.items()]


def test_admit_takes_whole_prompts_in_order_of_arrival() -> None:
    """Who came first is first, and has a row once it is admitted."""
    memory = make_memory()
    line, requests = _line(memory, 3, 4)

    stretches = line.admit(0)

    assert _counts(stretches) == [(1, 3), (2, 4)]
    assert [request.row for request in requests] == [1, 2]
    assert len(line) == 0


def test_admit_cuts_prompts_at_the_chunk() -> None:
    """No step has more than the chunk; the cut prompt goes on first, and others fill its step."""
    memory = make_memory()
    line, _ = _line(memory, 3, 9, 2, chunked_prefill_size=5)
    steps = []

    for _step in range(3):
        stretches = line.admit(0)
        _run(memory, stretches)
        steps.append(_counts(stretches))

    assert steps == [[(1, 3), (2, 2)], [(2, 5)], [(2, 2), (3, 2)]]


def test_admit_of_a_cut_prompt_counts_the_pages_that_it_has() -> None:
    """A stretch that fits into a page that is begun needs none."""
    memory = make_memory(page_size=4, num_tokens=8)
    line, _ = _line(memory, 8, chunked_prefill_size=2)
    _run(memory, line.admit(0))
    memory.pages.alloc(1)

    assert _counts(line.admit(0)) == [(1, 2)]


def test_retracted_request_stands_where_it_came() -> None:
    """Who is taken out of the KV cache is before all who came later, and after who came before."""
    memory = make_memory()
    line, requests = _line(memory, 3, 3, 3)
    stretches = line.admit(0)
    _run(memory, {own: stretches[own] for own in requests[1:]})
    line.add(make_request(4))

    for request in (requests[2], requests[0], requests[1]):
        line.retract(request)

    assert [request.number for request in line] == [1, 2, 3, 4]


def test_give_up_cut_takes_the_half_run_prompt_back() -> None:
    """The cut prompt gives its pages back, and starts anew at the head of the line."""
    memory = make_memory()
    line, requests = _line(memory, 9, 2, chunked_prefill_size=5)
    _run(memory, line.admit(0))

    assert line.give_up_cut() is requests[0]
    assert memory.pages.num_free == memory.pages.num_pages
    assert list(line) == requests
    assert _counts(line.admit(0)) == [(1, 5)]


def test_drop_takes_a_request_out_of_the_line() -> None:
    """Who is given up leaves the line; the others keep their order."""
    memory = make_memory()
    line, requests = _line(memory, 3, 4, 5)

    line.drop(requests[1])

    assert list(line) == [requests[0], requests[2]]


def test_drop_takes_out_a_cut_prompt() -> None:
    """A prompt that is given up half run is not gone on with; its row is its own to give back."""
    memory = make_memory()
    line, (request,) = _line(memory, 9, chunked_prefill_size=5)
    _run(memory, line.admit(0))

    line.drop(request)

    assert (len(line), request.row > 0) == (0, True)


@given(
    stays=st.lists(st.tuples(st.integers(1, 20), st.booleans()), min_size=1, max_size=6),
    num_free=st.integers(0, 40),
    page_size=st.sampled_from([1, 4]),
)
@law
def test_choose_retractions_takes_the_latest_and_never_the_last(
    stays: list[tuple[int, bool]], num_free: int, page_size: int
) -> None:
    """Whoever is chosen came later than who stays, who then fits, or is alone."""
    memory = make_memory(page_size=page_size, num_tokens=512)
    requests = [make_request(number) for number in range(len(stays))]
    enter(memory, *requests)
    for request, (length, _) in zip(requests, stays, strict=True):
        memory.grow([request.row], [length])
    missing = [int(lacks) for _, lacks in stays]
    memory.pages.alloc(max(0, memory.pages.num_free - num_free))

    chosen = choose_retractions(requests[::-1], missing[::-1], memory)

    left = [request for request in requests if request not in chosen]
    freed = sum(memory.num_pages(request.row) for request in chosen)
    still = sum(missing[request.number] for request in left)
    assert [request.number for request in chosen] == [*range(len(stays))][::-1][: len(chosen)]
    assert len(left) == 1 or (left and still <= memory.pages.num_free + freed)


@given(
    lengths=st.lists(st.integers(1, 30), max_size=8),
    page_size=st.sampled_from([1, 4]),
    chunk=st.none() | st.integers(1, 20),
    num_running=st.integers(0, 10),
)
@law
def test_admit_never_promises_more_than_there_is(
    lengths: list[int], page_size: int, chunk: int | None, num_running: int
) -> None:
    """What one step admits is within its budget, in order, and leaves a page for each to run."""
    memory = make_memory(page_size=page_size, num_tokens=64)
    line, requests = _line(memory, *lengths, max_prefill_tokens=40, chunked_prefill_size=chunk)

    stretches = line.admit(num_running)

    assert sum(stretches.values()) <= (chunk or 40)
    assert [*stretches] == requests[: len(stretches)]
    needed = sum(num_pages_of(count, page_size) for count in stretches.values())
    others = max(0, len(stretches) - 1)
    assert not stretches or needed + num_running + others <= memory.pages.num_free


@pytest.mark.parametrize(
    ("num_slots_behind", "num_admitted"), [pytest.param(0, 2, id="0"), pytest.param(1, 1, id="1")]
)
def test_admit_counts_what_a_step_writes_behind_a_prompt(
    num_slots_behind: int, num_admitted: int
) -> None:
    """A page that is begun behind a prompt is one of its step's."""
    memory = make_memory(page_size=4, num_tokens=16)
    line, _ = _line(memory, 4, 4, num_slots_behind=num_slots_behind)

    assert len(line.admit(0)) == num_admitted


@pytest.mark.parametrize(
    ("num_slots_behind", "expected"),
    [pytest.param(0, [(1, 4)], id="0"), pytest.param(1, [], id="1")],
)
def test_admit_counts_what_a_step_writes_behind_a_cut_prompt(
    num_slots_behind: int, expected: list[tuple[int, int]]
) -> None:
    """A stretch that ends with its page needs the next one for what its step writes behind it."""
    memory = make_memory(page_size=4, num_tokens=12)
    line, _ = _line(memory, 8, chunked_prefill_size=4, num_slots_behind=num_slots_behind)
    _run(memory, line.admit(0))
    memory.pages.alloc(1)

    assert _counts(line.admit(0)) == expected
