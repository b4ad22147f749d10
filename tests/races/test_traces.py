"""Random traces of the engine on the simulated device; `make races` and `make soak` run more."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from backend_caps.capability.vocabulary import HostSeqLens
from backend_caps.runtime.speculation import Algorithm
from backend_caps.simulator.queues import OrderPolicy
from tests.races.cases import Case, Program
from tests.races.engine_runs import num_retractions, oracle_of_drafts, trace_of
from tests.races.mutant_search import schedules_of
from tests.races.runs import run_case
from tests.races.traces import Backends, Trace

pytestmark = pytest.mark.slow

PLAIN = [Case.drawn(seed) for seed in range(24)]
DRAFTS = [Case.drafting(seed) for seed in range(32)]
HANDED = [
    Case.parse(line)
    for line in (
        "handovers 1 starve:4",
        "handovers 3 random:3 check_races",
        "handovers 8 lazy",
        "handovers 11 starve:2 check_races",
    )
]
CASES = [*PLAIN, *DRAFTS, *HANDED]
DRAWN = [trace_of(case) for case in (*PLAIN, *DRAFTS)]
LOOPS = [
    Case(program=program, seed=seed, schedule=schedule, checks_races=bool((seed + place) % 2))
    for program, seeds in (
        (Program.SPECULATIVE, range(4)),
        (Program.MIXED, range(2)),
        (Program.CAPTURES, range(1)),
        (Program.ENDS, range(2)),
    )
    for seed in seeds
    for place, schedule in enumerate(schedules_of(program, seed)[::2])
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_trace_is_clean(case: Case, folder: Path) -> None:
    """A trace has the plain loop's tokens, no race, no leak, and lengths equal to the mirror."""
    findings = run_case(case, folder)

    assert not findings, case.replay_line


@pytest.mark.parametrize("case", LOOPS, ids=str)
def test_loop_is_clean(case: Case, folder: Path) -> None:
    """A loop around a FutureMap or a graph has the values that the host computes, and no race."""
    findings = run_case(case, folder)

    assert not findings, case.replay_line


def test_profile_is_clean(folder: Path) -> None:
    """An engine whose chunks were timed, with one failure, has the plain loop's tokens."""
    case = Case.parse("profiles 1 random:1 check_races")

    findings = run_case(case, folder)

    assert not findings, case.replay_line


def test_traces_have_every_policy() -> None:
    """The traces of this file run under each kind of policy."""
    policies = {case.schedule.policy for case in CASES}

    assert policies == set(OrderPolicy)


@pytest.mark.parametrize(
    "happens",
    [
        pytest.param(lambda t: t.chunked_prefill_size, id="prompts are cut"),
        pytest.param(lambda t: t.mixed, id="steps are mixed"),
        pytest.param(lambda t: t.idle_steps, id="steps are idle"),
        pytest.param(lambda t: any(own.aborted_at for own in t.asked), id="requests are aborted"),
        pytest.param(lambda t: t.replayed and t.replays_prompts, id="prompts are replayed"),
        pytest.param(
            lambda t: t.replays_prompts and t.backends is Backends.PAIR, id="prompts in pieces"
        ),
        pytest.param(lambda t: not t.overlapped, id="steps do not overlap"),
        pytest.param(lambda t: not t.pinned, id="nothing is pinned"),
        pytest.param(lambda t: t.page_size == 16, id="pages are long"),
        pytest.param(lambda t: t.backends is Backends.PAIR, id="two backends"),
        *(
            pytest.param(lambda t, own=own: _drafts(t, own), id=f"drafts of {own.value}")
            for own in Algorithm
        ),
        *(
            pytest.param(
                lambda t, own=own: t.speculation and t.speculation.host_seq_lens is own,
                id=f"host lengths are {own.value}",
            )
            for own in HostSeqLens
        ),
        pytest.param(lambda t: t.speculation and t.speculation.settings.topk > 1, id="trees"),
        pytest.param(lambda t: t.speculation and t.replayed, id="verifies are replayed"),
        pytest.param(lambda t: t.speculation and t.mixed, id="mixed rows of drafts"),
        pytest.param(lambda t: t.speculation and t.speculation.two_batch, id="halves of batches"),
    ],
)
def test_traces_have_every_feature(happens: Callable[[Trace], object]) -> None:
    """Each thing that may happen to an engine happens in several traces of this file."""
    count = sum(bool(happens(trace)) for trace in DRAWN)

    assert count >= 3


def test_traces_retract(folder: Path) -> None:
    """KV caches of these traces are small enough for requests to be retracted."""
    traces = [trace_of(case) for case in PLAIN]

    num_retracting = sum(bool(num_retractions(trace, folder)) for trace in traces)

    assert num_retracting >= 3


def test_traces_accept_and_refuse(folder: Path) -> None:
    """Steps of these traces accept nothing of their drafts, some, and all."""
    traces = [trace_of(case) for case in DRAFTS[:12]]

    kept = {share for trace in traces for share in _shares_accepted(trace, folder)}

    assert {0, 1} < kept


def _drafts(trace: Trace, algorithm: Algorithm) -> bool:
    return trace.speculation is not None and trace.speculation.settings.algorithm is algorithm


def _shares_accepted(trace: Trace, folder: Path) -> set[float]:
    """List how much of their drafts' depth steps accept."""
    assert trace.speculation is not None, "it drafts"
    counts = oracle_of_drafts(trace, folder).accepted.values()
    depth = trace.speculation.settings.num_steps
    return {(count - 1) / depth for of_request in counts for count in of_request.values()}
