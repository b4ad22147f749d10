"""Speculation draws what plain decoding draws: seeds and positions decide, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import cycle

import pytest

from backend_caps.runtime import Engine, Sampling
from backend_caps.runtime.speculation import Algorithm
from tests.cases import axis
from tests.runtime.speculative.grid import Mirror, Way, make_engine, make_plain_engine
from tests.runtime.speculative.oracle import Targets

pytestmark = pytest.mark.no_cover  # run by other tests too, and twice as fast untraced

GREEDY = Sampling(max_new_tokens=1)
SAMPLINGS = [
    replace(GREEDY, temperature=0.7),
    replace(GREEDY, temperature=1.3, top_k=5),
    replace(GREEDY, temperature=1.0, top_p=0.6),
    replace(GREEDY, temperature=2.0, top_k=20, top_p=0.9),
    GREEDY,
]
SIZES = [
    pytest.param((1, 1), id="chains of 1"),
    pytest.param((1, 4), id="chains of 4"),
    pytest.param((2, 5), id="trees of 2 by 5"),
    pytest.param((4, 3), id="trees of 4 by 3"),
]
WAYS = [
    pytest.param(Way(algorithm=Algorithm.EAGLE, topk=4, overlapped=False), id="in the plain loop"),
    pytest.param(
        Way(algorithm=Algorithm.STANDALONE, topk=4, mirror=Mirror.UPPER_BOUND, mixed=True),
        id="mixed, by upper bounds",
    ),
    pytest.param(
        Way(algorithm=Algorithm.EAGLE, topk=2, mirror=Mirror.OF_HALVES, mixed=True, chunked=True),
        id="mixed and chunked, in halves",
    ),
    pytest.param(
        Way(algorithm=Algorithm.STANDALONE, mirror=Mirror.OF_BACKEND, chunked=True),
        id="chunked, by lengths",
    ),
]


def _sampled(engine: Engine, targets: Targets, algorithm: Algorithm) -> Sequence[list[int]]:
    """Give each job a sampling in turn, and a seed of its own."""
    requests = [
        engine.submit(
            job.prompt, replace(own, max_new_tokens=job.max_new_tokens, seed=1000 + place)
        )
        for place, (job, own) in enumerate(
            zip(targets.of(algorithm).jobs, cycle(SAMPLINGS), strict=False)
        )
    ]
    engine.drain()
    return [request.output for request in requests]


@pytest.fixture(scope="module")
def plainly(targets: Targets) -> Mapping[Algorithm, Sequence[list[int]]]:
    """Sample once without drafts, from each algorithm's target."""
    return {own: _sampled(make_plain_engine(targets, own), targets, own) for own in Algorithm}


@axis("algorithm", Algorithm)
@axis("size", SIZES)
def test_sampled_tokens_are_those_of_plain_decoding(
    targets: Targets,
    plainly: Mapping[Algorithm, Sequence[list[int]]],
    algorithm: Algorithm,
    size: tuple[int, int],
) -> None:
    """By the same seeds, requests sampled in all ways get the same tokens as without drafts."""
    topk, num_steps = size
    engine = make_engine(targets, Way(algorithm=algorithm, topk=topk, num_steps=num_steps))

    assert _sampled(engine, targets, algorithm) == plainly[algorithm]


@axis("way", WAYS)
def test_sampled_tokens_are_the_same_in_every_mode(
    targets: Targets, plainly: Mapping[Algorithm, Sequence[list[int]]], way: Way
) -> None:
    """Loop, mixing and mirror change no sampled token."""
    tokens = _sampled(make_engine(targets, way), targets, way.algorithm)

    assert tokens == plainly[way.algorithm]


@pytest.mark.parametrize("algorithm", Algorithm)
def test_plain_decoding_samples(
    targets: Targets, plainly: Mapping[Algorithm, Sequence[list[int]]], algorithm: Algorithm
) -> None:
    """What is sampled is not what the oracle has, but where it is asked for greedily."""
    greedy = targets.of(algorithm).tokens

    tokens = plainly[algorithm]

    assert tokens[4::5] == greedy[4::5]
    assert sum(own == right for own, right in zip(tokens, greedy, strict=True)) < 20
