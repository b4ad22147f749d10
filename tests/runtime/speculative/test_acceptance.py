"""Drafts are accepted as often as they should be: the parity of tokens is not that of refusals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean

import pytest

from backend_caps.runtime.engine import Engine
from backend_caps.runtime.model.config import LlamaConfig
from backend_caps.runtime.model.random_models import first_layers, random_eagle
from backend_caps.runtime.options import EngineOptions
from backend_caps.runtime.request import Sampling
from backend_caps.runtime.speculation import Algorithm
from tests.cases import axis
from tests.runtime.engines import run
from tests.runtime.oracle import Job
from tests.runtime.speculative.grid import Way, make_engine
from tests.runtime.speculative.oracle import Target, Targets

pytestmark = pytest.mark.no_cover  # run by other tests too, and twice as fast untraced

ALONE = EngineOptions(max_running_requests=1)
SIZES = [pytest.param(1, id="chains"), pytest.param(4, id="trees")]
LENGTHS = [
    pytest.param(Way(algorithm=Algorithm.EAGLE), 1.5, id="chains of a head"),
    pytest.param(Way(algorithm=Algorithm.EAGLE, topk=4), 1.9, id="trees of a head"),
    pytest.param(Way(algorithm=Algorithm.EAGLE3), 1.3, id="chains of an EAGLE3 head"),
    pytest.param(Way(algorithm=Algorithm.EAGLE3, topk=4), 1.6, id="trees of an EAGLE3 head"),
    pytest.param(Way(algorithm=Algorithm.STANDALONE), 1.5, id="chains of a small model"),
    pytest.param(Way(algorithm=Algorithm.STANDALONE, topk=4), 1.9, id="trees of a small model"),
    pytest.param(Way(algorithm=Algorithm.NGRAM), 1.25, id="chains of n-grams"),
    pytest.param(Way(algorithm=Algorithm.NGRAM, topk=4), 1.25, id="trees of n-grams"),
]


def _accept_lens(engine: Engine, jobs: Sequence[Job], sampling: Sampling) -> list[int]:
    """Run one job after the other, and count what each step gave, that its end cut none of."""
    counted: list[int] = []
    for number, job in enumerate(jobs):
        request = engine.submit(job.prompt, replace(sampling, seed=number))
        made: list[int] = []
        while not request.is_finished:
            made.append(len(engine.step()))
        _, *whole, _ = filter(None, made)  # the prompt's step, and the last one
        counted += whole
    return counted


GREEDY = Sampling(max_new_tokens=32, stop_token_ids=frozenset())
SAMPLED = replace(GREEDY, temperature=0.7, top_p=0.9)


def _some(target: Target) -> Sequence[Job]:
    """Take a dozen; of a forgetful target's those that repeat themselves."""
    return target.jobs[:24:2]


@axis(("way", "least"), LENGTHS)
@axis("sampling", [pytest.param(GREEDY, id="greedy"), pytest.param(SAMPLED, id="sampled")])
def test_drafts_are_accepted(targets: Targets, way: Way, least: float, sampling: Sampling) -> None:
    """A step of a draft that is often right gives well above one token."""
    engine = make_engine(targets, way, options=ALONE)

    accept_lens = _accept_lens(engine, _some(targets.of(way.algorithm)), sampling)

    assert mean(accept_lens) > least


@axis("algorithm", Algorithm)
@axis("topk", SIZES)
def test_steps_accept_none_some_and_all(targets: Targets, algorithm: Algorithm, topk: int) -> None:
    """Of three drafts in a row, every number is accepted now and then."""
    engine = make_engine(targets, Way(algorithm=algorithm, topk=topk), options=ALONE)

    accept_lens = _accept_lens(engine, _some(targets.of(algorithm)), GREEDY)

    assert set(accept_lens) == {1, 2, 3, 4}


@axis("num_steps", [1, 3, 5])
def test_draft_that_is_the_target_is_always_right(
    targets: Targets, tmp_path: Path, num_steps: int
) -> None:
    """All that a copy of the target drafts is accepted, step after step."""
    target = targets.heedful
    first_layers(tmp_path, target.folder, num_layers=3)
    way = Way(algorithm=Algorithm.STANDALONE, num_steps=num_steps)
    engine = Engine.from_plan(
        target.folder, way.plan, "cpu", options=ALONE, draft_model_path=tmp_path
    )

    accept_lens = _accept_lens(engine, _some(target), GREEDY)

    assert set(accept_lens) == {num_steps + 1}


@axis("topk", SIZES)
def test_draft_that_is_always_wrong_changes_no_token(
    targets: Targets, tmp_path: Path, topk: int
) -> None:
    """A head with random weights costs time alone."""
    target = targets.heedful
    random_eagle(tmp_path, LlamaConfig.from_folder(target.folder))
    way = Way(algorithm=Algorithm.EAGLE, topk=topk)
    engine = Engine.from_plan(target.folder, way.plan, "cpu", draft_model_path=tmp_path)

    tokens = run(engine, target.jobs)

    assert tokens == target.tokens
