"""What one engine goes on with where another one ran the prompt."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import pytest
from torch import Tensor

from backend_caps import HostSeqLens
from backend_caps.relay import FutureMap
from backend_caps.runtime import FinishReason, Handover, Sampling
from tests.cases import axis
from tests.runtime.engines import leaks
from tests.runtime.handovers import (
    CHUNKED,
    EAGER,
    FEW_ROWS,
    GREEDY,
    LONG,
    PROMPTS,
    SEEDED,
    SMALL_CACHE,
    Way,
    go_on,
    hand_over_all,
    make_engine,
    outputs,
    write_models,
)

NONE, UPPER_BOUND, EXACT = HostSeqLens
PLAIN_LOOP, MIXED = ("--disable-overlap-schedule",), ("--enable-mixed-chunk",)
WAYS = (
    Way(),
    Way(flags=PLAIN_LOOP),
    Way(flags=MIXED, page_size=4),
    Way(algorithm="EAGLE", topk=2),
    Way(algorithm="EAGLE", level=UPPER_BOUND, flags=MIXED, page_size=4),
    Way(algorithm="EAGLE", topk=4, level=EXACT, num_steps=3),
    Way(algorithm="EAGLE", topk=2, flags=PLAIN_LOOP),
    Way(algorithm="STANDALONE", topk=2, level=UPPER_BOUND, page_size=16),
    Way(algorithm="STANDALONE", flags=MIXED),
    Way(algorithm="STANDALONE", level=EXACT, flags=PLAIN_LOOP),
    Way(algorithm="NGRAM", level=EXACT, topk=2),
    Way(algorithm="NGRAM", level=EXACT, flags=PLAIN_LOOP),
)
SAMPLINGS = (GREEDY, SEEDED)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the models of every engine here."""
    return write_models(tmp_path_factory.mktemp("handover"))


@pytest.fixture(scope="module")
def expected(models: Path) -> list[list[int]]:
    """Say what one engine makes of the prompts, without speculation."""
    return make_engine(models, Way()).generate(PROMPTS, sampling=GREEDY)


@axis("way", WAYS, ids=str)
def test_two_engines_give_the_tokens_of_one(
    models: Path, way: Way, expected: list[list[int]]
) -> None:
    """Whatever goes on with a prompt that ran elsewhere, it goes on as one engine does."""
    seeded = make_engine(models, Way()).generate(PROMPTS, sampling=SEEDED)
    decode = make_engine(models, way, "decode", options=FEW_ROWS)

    handovers = [own for each in SAMPLINGS for own in hand_over_all(models, way, sampling=each)]

    assert outputs(go_on(decode, handovers)) == [*expected, *seeded]


@axis("way", WAYS[::2], ids=str)
def test_retracted_prompt_runs_again_where_it_was_taken_over(models: Path, way: Way) -> None:
    """A decode engine whose cache is too small for two outputs runs what it retracts by itself."""
    engine = make_engine(models, replace(way, page_size=1), "decode", options=SMALL_CACHE)

    requests = go_on(engine, hand_over_all(models, way, PROMPTS[-2:], LONG))

    assert outputs(requests) == make_engine(models, Way()).generate(PROMPTS[-2:], sampling=LONG)
    assert sum(request.num_retractions for request in requests) > 0
    assert leaks(engine) == (0, 0)


@pytest.mark.parametrize("algorithm", [None, "EAGLE"])
def test_handover_publishes_lengths_under_speculation_alone(
    models: Path, monkeypatch: pytest.MonkeyPatch, algorithm: str | None
) -> None:
    """Without speculation the batch keeps its lengths, and the relay carries tokens alone."""
    way = Way(algorithm=algorithm)
    engine = make_engine(models, way, "decode")
    handover, *_ = hand_over_all(models, way, PROMPTS[-1:])
    publish, published = FutureMap.publish, []

    def recorded(relay: FutureMap, req_pool_indices: Tensor, seq_lens: Tensor) -> None:
        published.append(seq_lens.tolist())
        publish(relay, req_pool_indices, seq_lens)

    monkeypatch.setattr(FutureMap, "publish", recorded)
    engine.take_over(handover)
    engine.drain()

    assert published[:1] == ([] if algorithm is None else [[len(PROMPTS[-1])]])


@axis("topk", [1, 3])
@axis("algorithm", ["EAGLE", "STANDALONE"])
def test_drafts_are_as_good_as_those_of_one_engine(models: Path, algorithm: str, topk: int) -> None:
    """Step by step as much is accepted: the draft's cache and state are those of one engine."""
    way = Way(algorithm=algorithm, topk=topk)
    whole, decode = make_engine(models, way), make_engine(models, way, "decode")
    whole.submit(PROMPTS[-1], GREEDY)
    decode.take_over(hand_over_all(models, way, PROMPTS[-1:])[0])

    expected = [len(whole.step()) for _ in range(9)]
    actual = [len(decode.step()) for _ in range(9)]

    assert max(actual) > 1
    assert [num for num in actual if num] == [num for num in expected if num][1:]


@pytest.mark.parametrize("algorithm", [None, "EAGLE", "STANDALONE", "NGRAM"])
def test_both_engines_get_back_what_a_request_had(models: Path, algorithm: str | None) -> None:
    """Rows and pages of both are free at the end."""
    way = Way(algorithm=algorithm)
    prefill = make_engine(models, way, "prefill", options=CHUNKED)
    decode = make_engine(models, way, "decode")

    go_on(decode, list(prefill.hand_over(PROMPTS, GREEDY)))

    assert (leaks(prefill), leaks(decode)) == ((0, 0), (0, 0))


@pytest.mark.parametrize(
    ("runs_prompts", "goes_on"),
    [
        pytest.param(Way(algorithm="EAGLE", topk=2), Way(), id="one that does not speculate"),
        pytest.param(
            Way(algorithm="EAGLE", num_steps=1, page_size=4),
            Way(algorithm="EAGLE", num_steps=3, page_size=16),
            id="other trees and pages",
        ),
    ],
)
def test_engines_of_a_pair_may_differ(
    models: Path, expected: list[list[int]], runs_prompts: Way, goes_on: Way
) -> None:
    """What a decode engine does not read is left out; page size and trees are its own affair."""
    handovers = hand_over_all(models, runs_prompts)

    assert outputs(go_on(make_engine(models, goes_on, "decode"), handovers)) == expected


@pytest.mark.parametrize(
    ("sampling", "reason"),
    [
        pytest.param(Sampling(max_new_tokens=1), FinishReason.LENGTH, id="one token"),
        pytest.param(
            Sampling(max_new_tokens=9, stop_token_ids=frozenset(range(97))),
            FinishReason.STOP,
            id="a stop token",
        ),
    ],
)
def test_output_that_ended_with_the_prompt_takes_no_room(
    models: Path, sampling: Sampling, reason: FinishReason
) -> None:
    """Where the first token is the last one, nothing runs."""
    decode = make_engine(models, Way(), "decode")
    [handover] = hand_over_all(models, Way(), PROMPTS[3:4], sampling)

    request = decode.take_over(handover)

    assert (request.output, request.finish_reason) == ([handover.token], reason)
    assert not decode.scheduler.has_work


def test_request_is_given_up_before_its_turn(models: Path) -> None:
    """A request that waits for a row has nothing to give back, and what it came with is let go."""
    decode = make_engine(models, Way(), "decode", options=replace(EAGER, max_running_requests=1))
    _, waiting = (decode.take_over(own) for own in hand_over_all(models, Way(), PROMPTS[:2]))
    decode.step()

    decode.abort(waiting)
    decode.drain()

    assert (waiting.states, len(waiting.output), leaks(decode)) == (None, 1, (0, 0))


def test_requests_come_in_their_turn(models: Path) -> None:
    """A long prompt that waits for pages is not overtaken by a short one."""
    options = replace(EAGER, max_total_tokens=40)
    decode = make_engine(models, Way(), "decode", options=options)
    handovers = hand_over_all(models, Way(), [PROMPTS[5], PROMPTS[5], PROMPTS[0]])
    requests = [decode.take_over(own) for own in handovers]

    decode.step()

    assert [bool(request.row) for request in requests] == [True, False, False]


def test_prompt_is_handed_over_before_the_next_has_run(models: Path) -> None:
    """Each is there as soon as it has run."""
    prefill = make_engine(models, Way(), "prefill", options=CHUNKED)
    ways = prefill.hand_over(PROMPTS, GREEDY)

    assert next(ways).prompt == PROMPTS[0]
    assert prefill.scheduler.has_requests


def test_who_stops_reading_gives_prompts_up(models: Path) -> None:
    """Prompts that nobody reads any more leave nothing behind."""
    prefill = make_engine(models, Way(), "prefill", options=CHUNKED)
    ways = iter(prefill.hand_over(PROMPTS, GREEDY))
    next(ways)

    del ways
    prefill.drain()

    assert leaks(prefill) == (0, 0)
    assert not prefill.scheduler.has_requests


def _in_a_process(models: Path, way: Way, pickled: Sequence[bytes]) -> list[list[int]]:
    handovers: list[Handover] = [pickle.loads(own) for own in pickled]  # noqa: S301 - our own
    return outputs(go_on(make_engine(models, way, "decode"), handovers))


@pytest.mark.slow
def test_another_process_goes_on(models: Path, expected: list[list[int]]) -> None:
    """What crosses is a value: pickled, it is gone on with in a process of its own."""
    way = Way(algorithm="EAGLE", topk=2)
    pickled = [pickle.dumps(own) for own in hand_over_all(models, way)]

    with get_context("spawn").Pool(1) as pool:
        actual = pool.apply(_in_a_process, (models, way, pickled))

    assert actual == expected
