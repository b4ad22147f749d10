from __future__ import annotations

from itertools import chain, islice, zip_longest

import pytest

from backend_caps.runtime import Engine
from tests.runtime.engines import LOOPS, leaks, make_engine
from tests.runtime.oracle import Oracle


def _prompts(oracle: Oracle, start: int, stop: int) -> list[tuple[int, ...]]:
    return [job.prompt for job in oracle.jobs[start:stop]]


def _by_place(pairs: list[tuple[int, int]]) -> list[list[int]]:
    """Gather streamed tokens by the place of their prompt."""
    num_places = 1 + max(place for place, _ in pairs)
    return [[token for own, token in pairs if own == place] for place in range(num_places)]


@pytest.mark.parametrize("loop", LOOPS)
def test_stream_yields_the_tokens_of_generate(oracle: Oracle, loop: tuple[str, ...]) -> None:
    """Gathered by prompt, streamed tokens are the outputs that `generate` returns."""
    prompts = _prompts(oracle, 0, 7)
    expected = make_engine(oracle.folder, *loop).generate(prompts, 9)

    pairs = list(make_engine(oracle.folder, *loop).stream(prompts, 9))

    assert _by_place(pairs) == expected


def test_stream_yields_tokens_as_they_come(oracle: Oracle) -> None:
    """Requests that run together take turns: each prompt's first token is before any second."""
    pairs = list(make_engine(oracle.folder).stream(_prompts(oracle, 2, 5), 4))

    assert [place for place, _ in pairs[:3]] == [0, 1, 2]


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("num_read", [1, 5])
def test_stream_that_is_closed_aborts_its_requests(
    oracle: Oracle, loop: tuple[str, ...], num_read: int
) -> None:
    """Who stops reading gives the requests up, and an empty engine is soon empty again."""
    engine = make_engine(oracle.folder, *loop)
    stream = engine.stream(_prompts(oracle, 2, 6), 20)
    assert len(list(islice(stream, num_read))) == num_read

    del stream  # as who leaves a loop over it does
    engine.drain()

    assert leaks(engine) == (0, 0)
    assert engine.scheduler.has_work is False


def test_streams_of_one_engine_take_no_tokens_from_each_other(oracle: Oracle) -> None:
    """Two streams that are read in turn have all their tokens, whoever runs the steps."""
    engine = make_engine(oracle.folder)
    sides = (_prompts(oracle, 0, 4), _prompts(oracle, 10, 14))
    expected = [make_engine(oracle.folder).generate(prompts, 9) for prompts in sides]

    one, other = _read_in_turn(engine, *sides)

    assert [_by_place(one), _by_place(other)] == expected


def _read_in_turn(
    engine: Engine, *sides: list[tuple[int, ...]]
) -> tuple[list[tuple[int, int]], ...]:
    """Read a token of each side's stream, then the next one of each."""
    turns = zip_longest(*(engine.stream(prompts, 9) for prompts in sides))
    return tuple([pair for pair in side if pair is not None] for side in zip(*turns, strict=True))


def test_stream_keeps_its_tokens_while_others_generate(oracle: Oracle) -> None:
    """What a `generate` in between makes of a stream's requests is yielded afterwards."""
    engine = make_engine(oracle.folder)
    prompts = _prompts(oracle, 0, 4)
    expected = make_engine(oracle.folder).generate(prompts, 9)
    stream = engine.stream(prompts, 9)
    first = [next(stream)]

    engine.generate(_prompts(oracle, 10, 14), 20)

    assert _by_place(list(chain(first, stream))) == expected
