from __future__ import annotations

import math

import pytest

from backend_caps.runtime import EngineError, EngineOptions, FinishReason, Sampling, SamplingError
from backend_caps.runtime.options import largest_step
from backend_caps.runtime.speculation import Algorithm, SpecSettings
from tests.runtime.engines import make_engine
from tests.runtime.memories import make_request
from tests.runtime.oracle import CONTEXT_LEN, Oracle


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens=0; a whole number from 1"),
        ({"max_new_tokens": 2.5}, "max_new_tokens=2.5; a whole number from 1"),
        ({"max_new_tokens": True}, "max_new_tokens=True; a whole number from 1"),
        ({"stop_token_ids": 5}, "stop_token_ids=5; a frozenset of tokens, or None"),
        ({"stop_token_ids": frozenset({"a"})}, "stop_token_ids=frozenset({'a'}); a frozenset of"),
        ({"temperature": -0.5}, "temperature=-0.5; 0 or more"),
        ({"temperature": math.nan}, "temperature=nan; 0 or more"),
        ({"temperature": math.inf}, "temperature=inf; 0 or more"),
        ({"temperature": 2.0**31}, "temperature=2147483648.0; 0 or more"),
        ({"top_k": 0}, "top_k=0; a whole number from 1, or None"),
        ({"top_p": 0.0}, "top_p=0.0; above 0"),
        ({"top_p": 1.5}, "top_p=1.5; above 0 and at most 1"),
        ({"seed": -1}, "seed=-1; a whole number, 0 or more"),
        ({"seed": 2**63}, "seed=9223372036854775808; a whole number, 0 or more and below"),
    ],
)
def test_sampling_refuses_what_is_out_of_range(changes: dict[str, object], text: str) -> None:
    """A value out of its range is refused by its name, the value and the range."""
    with pytest.raises(SamplingError) as caught:
        Sampling(**{"max_new_tokens": 4, **changes})  # type: ignore[arg-type] # a table of any field

    assert f"sampling has {text}" in str(caught.value)


@pytest.mark.parametrize(
    ("sampling", "is_greedy"),
    [
        (Sampling(max_new_tokens=1), True),
        (Sampling(max_new_tokens=1, temperature=0.7, top_k=1), True),
        (Sampling(max_new_tokens=1, temperature=0.7), False),
    ],
)
def test_sampling_is_greedy_where_the_likeliest_token_is_chosen(
    sampling: Sampling, is_greedy: bool
) -> None:
    """No temperature, or one token to choose among, is greedy."""
    assert sampling.is_greedy is is_greedy


def test_request_prefills_what_was_made_before_its_stay() -> None:
    """A stay begins with the prompt and the output so far; nothing of it has run."""
    request = make_request(prompt=[5, 6])
    request.take(9)

    request.enter(3, 4)

    assert (request.row, request.generation, request.prefill) == (3, 4, (5, 6, 9))
    assert request.num_left_to_prefill == 3


@pytest.mark.parametrize(("num_launched", "is_launched_out"), [(0, False), (1, False), (2, True)])
def test_request_is_launched_out_by_tokens_of_every_stay(
    num_launched: int, is_launched_out: bool
) -> None:
    """Tokens that came before this stay count, and those that are under way."""
    request = make_request(max_new_tokens=3)
    request.take(9)
    request.enter(1, 1)

    request.num_launched = num_launched

    assert request.is_launched_out is is_launched_out


@pytest.mark.parametrize(
    ("tokens", "taken", "reason"),
    [
        pytest.param([9, 8], [9, 8], None, id="goes on"),
        pytest.param([9, 2, 8], [9, 2], FinishReason.STOP, id="behind a stop token"),
        pytest.param([9, 8, 7, 6], [9, 8, 7], FinishReason.LENGTH, id="behind its length"),
        pytest.param([9, 8, 2, 6], [9, 8, 2], FinishReason.STOP, id="behind both"),
    ],
)
def test_request_takes_nothing_behind_the_end_of_its_output(
    tokens: list[int], taken: list[int], reason: FinishReason
) -> None:
    """Of a step that goes beyond the end, the rest is nobody's."""
    request = make_request(max_new_tokens=4)
    request.take(5)

    assert request.take_step(tokens) == taken
    assert (request.output, request.finish_reason) == ([5, *taken], reason)


def test_request_counts_what_a_step_made_above_one() -> None:
    """A step under way counts as one token; what it made is known with its result."""
    request = make_request(max_new_tokens=5)
    request.enter(1, 1)
    request.num_launched = 2
    request.take_step([9])

    request.take_step([8, 7, 6])

    assert request.num_launched == 4
    assert not request.is_launched_out


def test_request_counts_steps_of_decode_alone() -> None:
    """The first result of a stay is its prompt's, and ends no decode step."""
    request = make_request()
    request.enter(1, 1)
    request.num_steps_under_way = 2

    left = []
    for tokens in ([9], [8, 7], [6]):
        request.take_step(tokens)
        left.append(request.num_steps_under_way)

    assert left == [2, 1, 0]


def test_request_has_committed_all_but_its_last_token() -> None:
    """The prompt is committed with its step, and each token with the step that it goes into."""
    request = make_request(prompt=[5, 6, 7])
    request.enter(1, 1)
    committed = [request.committed_len]

    for tokens in ([9], [8, 7], [6]):
        request.take_step(tokens)
        committed.append(request.committed_len)

    assert committed == [3, 3, 5, 6]


CHUNK = {"chunked_prefill_size": 96}
TREES = SpecSettings(algorithm=Algorithm.NGRAM, topk=2, num_steps=3, num_draft_tokens=8)


@pytest.mark.parametrize(
    ("options", "speculation", "mixed", "expected"),
    [
        pytest.param({"max_prefill_tokens": 300}, None, False, 300, id="the budget"),
        pytest.param({"max_prefill_tokens": 50}, None, False, 100, id="a prompt by itself"),
        pytest.param({"chunked_prefill_size": 96}, None, False, 96, id="a chunk"),
        pytest.param({**CHUNK, "max_prefill_tokens": 80}, None, False, 80, id="a budget"),
        pytest.param({"max_running_requests": 3}, None, False, 300, id="a context each"),
        pytest.param({"chunked_prefill_size": 8}, None, False, 64, id="a decode"),
        pytest.param(CHUNK, None, True, 159, id="decode rows join"),
        pytest.param({**CHUNK, "max_running_requests": 20}, TREES, False, 160, id="a verify"),
    ],
)
def test_largest_step_follows_from_the_options(
    options: dict[str, int], speculation: SpecSettings | None, mixed: bool, expected: int
) -> None:
    """A step is as large as its prompts, its chunk or its rows and trees, whichever is the most."""
    made = EngineOptions(**options)  # type: ignore[arg-type] # a table of fields

    assert largest_step(made, 100, speculation, mixed=mixed) == expected


@pytest.mark.parametrize("mixed", [(), ("--enable-mixed-chunk",)], ids=["apart", "mixed"])
def test_engine_refuses_a_graph_of_more_tokens_than_a_step(
    oracle: Oracle, mixed: tuple[str, ...]
) -> None:
    """A graph that nothing would replay is refused, however large, with the largest step."""
    options = EngineOptions(
        max_running_requests=2, chunked_prefill_size=32, graph_token_counts=(16, 10**9)
    )

    with pytest.raises(EngineError) as caught:
        make_engine(oracle.folder, *mixed, options=options)

    assert caught.value.code == "graph-token-count"
    largest = 33 if mixed else 32
    assert f"has {10**9}; at most {largest} was expected" in str(caught.value)


def test_engine_takes_a_graph_of_its_largest_step(oracle: Oracle) -> None:
    """The largest number that is not refused is that of the largest step."""
    options = EngineOptions(max_running_requests=1, graph_token_counts=(CONTEXT_LEN,))

    engine = make_engine(oracle.folder, options=options)

    assert engine.options.graph_token_counts == (CONTEXT_LEN,)
