"""Requests come and go while steps of unknown length are in flight: no token changes."""

from __future__ import annotations

from functools import partial

import pytest

from backend_caps.runtime import EngineOptions, Sampling, configuration_of
from backend_caps.runtime import engine as engine_module
from backend_caps.runtime.speculation import Algorithm
from tests.cases import axis
from tests.runtime.churn import is_aborted, num_retractions, run_with_churn, up_to_aborts
from tests.runtime.engines import leaks, submit
from tests.runtime.speculative.grid import Mirror, Way, make_engine, make_plain_engine
from tests.runtime.speculative.oracle import CONTEXT_LEN, Targets

pytestmark = pytest.mark.no_cover  # run by other tests too, and twice as fast untraced

EAGLE, EAGLE3, STANDALONE, NGRAM = Algorithm
WAYS = [
    Way(algorithm=EAGLE, topk=4),
    Way(algorithm=EAGLE, topk=2, num_steps=2, mirror=Mirror.UPPER_BOUND, chunked=True),
    Way(algorithm=EAGLE, topk=4, mirror=Mirror.OF_HALVES, mixed=True, chunked=True, page_size=4),
    Way(algorithm=EAGLE, num_steps=5, mirror=Mirror.OF_BACKEND, overlapped=False),
    Way(algorithm=STANDALONE, topk=2, mixed=True, page_size=4),
    Way(algorithm=STANDALONE, num_steps=4, mirror=Mirror.UPPER_BOUND),
    Way(algorithm=STANDALONE, topk=4, mirror=Mirror.UPPER_BOUND, mixed=True, chunked=True),
    Way(algorithm=STANDALONE, topk=4, overlapped=False, mixed=True),
    Way(algorithm=NGRAM, topk=4, mirror=Mirror.OF_RULE, mixed=True, chunked=True),
    Way(algorithm=NGRAM, mirror=Mirror.UPPER_BOUND, page_size=4),
]
EVERY_WAY = axis("way", WAYS, ids=str)
# The longest job needs 136 tokens, drafts included: two requests are often too many.
BARELY = EngineOptions(max_total_tokens=136, max_running_requests=8)
FEW_ROWS = EngineOptions(max_running_requests=3)


@pytest.fixture(autouse=True)
def _checked_relays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let relays check every call: a bound below the truth, or a row that is read twice, raises."""
    checked = partial(configuration_of, debug=True)
    monkeypatch.setattr(engine_module, "configuration_of", checked)


@EVERY_WAY
def test_retracted_requests_end_with_the_tokens_of_transformers(targets: Targets, way: Way) -> None:
    """A KV cache so small that requests are taken out and computed anew changes no token."""
    engine, target = make_engine(targets, way, options=BARELY), targets.of(way.algorithm)
    # Short prompts are let in together, and have no room to grow.
    shortest = sorted(range(len(target.jobs)), key=lambda place: len(target.jobs[place].prompt))
    requests = [submit(engine, target.jobs[place]) for place in shortest]

    engine.drain()

    assert num_retractions(requests) > 0
    assert [own.output for own in requests] == [target.tokens[place] for place in shortest]
    assert leaks(engine) == (0, 0)


@EVERY_WAY
@pytest.mark.parametrize(
    "options",
    [pytest.param(FEW_ROWS, id="few rows"), pytest.param(BARELY, id="barely room for one")],
)
def test_churn_changes_no_speculated_token(
    targets: Targets, way: Way, options: EngineOptions
) -> None:
    """Whoever comes or is given up meanwhile: tokens stay right, up to where one was given up."""
    engine, target = make_engine(targets, way, options=options), targets.of(way.algorithm)

    requests = run_with_churn(engine, target.jobs, seed=1)

    assert any(own.output for own in requests if is_aborted(own))
    assert [own.output for own in requests] == up_to_aborts(requests, target.tokens)
    assert leaks(engine) == (0, 0)


@EVERY_WAY
def test_idle_steps_change_no_speculated_token(targets: Targets, way: Way) -> None:
    """A rank that runs along without requests, at first, between steps and at last, loses none."""
    engine, target = make_engine(targets, way, options=FEW_ROWS), targets.of(way.algorithm)
    engine.scheduler.step_idle()
    requests = [submit(engine, job) for job in target.jobs[:24]]

    while engine.scheduler.has_work:
        engine.step()
        engine.scheduler.step_idle()

    assert [request.output for request in requests] == target.tokens[:24]
    assert leaks(engine) == (0, 0)


@EVERY_WAY
def test_speculated_contexts_end_exactly_where_they_may(targets: Targets, way: Way) -> None:
    """Steps that reach behind the longest context of all change no token of it."""
    engine, plain = make_engine(targets, way), make_plain_engine(targets, way.algorithm)
    longest = [
        (prompt, Sampling(max_new_tokens=CONTEXT_LEN + 1 - len(prompt), stop_token_ids=frozenset()))
        for prompt in (range(10, CONTEXT_LEN + 10 - left) for left in range(5))
    ]
    requests = [engine.submit(prompt, sampling) for prompt, sampling in longest]

    engine.drain()

    assert [own.output for own in requests] == [
        plain.generate([prompt], sampling=sampling)[0] for prompt, sampling in longest
    ]
    assert leaks(engine) == (0, 0)
