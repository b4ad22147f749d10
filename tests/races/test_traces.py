"""Random traces of the engine on the simulated device; `make races` and `make soak` run more."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from backend_caps.capability.vocabulary import HostSeqLens
from backend_caps.runtime.request import Sampling
from backend_caps.runtime.speculation import Algorithm, SpecSettings
from backend_caps.simulator.queues import OrderPolicy
from tests.races.accepts import Accepts
from tests.races.cases import Case, Program
from tests.races.engine_runs import num_retractions, oracle_of_drafts, trace_of
from tests.races.engine_setup import make_engine
from tests.races.mutant_search import schedules_of
from tests.races.replay import main
from tests.races.runs import run_case
from tests.races.traces import Backends, Speculation, Trace

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
    assert not run_case(case, folder), case.replay_line


@pytest.mark.parametrize("case", LOOPS, ids=str)
def test_loop_is_clean(case: Case, folder: Path) -> None:
    """A loop around a FutureMap or a graph has the values that the host computes, and no race."""
    assert not run_case(case, folder), case.replay_line


def test_profile_is_clean(folder: Path) -> None:
    """An engine whose chunks were timed, with one failure, has the plain loop's tokens."""
    case = Case.parse("profiles 1 random:1 check_races")

    assert not run_case(case, folder), case.replay_line


def test_traces_have_every_policy() -> None:
    """The traces of this file run under each kind of policy."""
    assert {case.schedule.policy for case in CASES} == set(OrderPolicy)


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
    assert sum(bool(happens(trace)) for trace in DRAWN) >= 3


def test_traces_retract(folder: Path) -> None:
    """KV caches of these traces are small enough for requests to be retracted."""
    traces = [trace_of(case) for case in PLAIN]

    assert sum(bool(num_retractions(trace, folder)) for trace in traces) >= 3


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


@pytest.mark.parametrize(
    ("made", "told"),
    [
        pytest.param({1: {1: 2, 3: 1}}, [], id="the same"),
        pytest.param({1: {2: 1}}, [], id="a step that starts elsewhere"),
        pytest.param({2: {0: 1}}, [], id="another request"),
        pytest.param(
            {1: {1: 1, 2: 1, 3: 1}},
            ["wrong draft: request 1 got 1 tokens behind 1, not 2"],
            id="less of the same draft",
        ),
    ],
)
def test_accepts_are_those_of_the_plain_loop(
    made: Mapping[int, Mapping[int, int]], told: list[str]
) -> None:
    """Where two runs start a step at the same token, both keep as much of its draft."""
    right = Accepts(accepted={1: {1: 2, 3: 1}})
    own = Accepts(accepted={number: dict(counts) for number, counts in made.items()})

    assert list(map(str, own.findings(right))) == told


@pytest.mark.parametrize("seed", range(20))
def test_case_is_what_its_line_says(seed: int) -> None:
    """The line that a case prints as is read as the same case."""
    case = Case.drawn(seed)

    assert Case.parse(str(case)) == case


def test_case_line_with_another_end_is_refused() -> None:
    """A word that no case ends in is named, with what was expected."""
    with pytest.raises(ValueError, match=r"'engine 1 lazy twice' ends in 'twice'; check_races or"):
        Case.parse("engine 1 lazy twice")


@pytest.mark.parametrize("policy", OrderPolicy)
def test_drawn_case_has_the_policy_that_is_asked_for(policy: OrderPolicy) -> None:
    """A policy that is given is the drawn schedule's."""
    assert Case.drawn(5, policy).schedule.policy is policy


def test_replay_line_is_the_command() -> None:
    """A failing run prints the command that repeats it."""
    case = Case.parse("engine 7 starve:2")

    assert case.replay_line == "python -m tests.races.replay engine 7 starve:2"


def test_replay_of_a_clean_run_says_so() -> None:
    """A run without findings prints one word, and ends well."""
    result = CliRunner().invoke(main, ["mixed", "0", "lazy"])

    assert (result.exit_code, result.output) == (0, "clean\n")


def test_replay_prints_the_trace() -> None:
    """What an engine is asked for stands above what is wrong with the run."""
    result = CliRunner().invoke(main, ["engine", "5", "lazy"])

    assert result.output.startswith("Trace(seed=5, asked=(Asked(prompt=(")


def test_replay_with_a_mutant_prints_its_faults() -> None:
    """A mutant that is asked for is in place, and its findings are printed."""
    line = ["speculative", "0", "lazy", "--mutant", "column copy waits for publish"]

    result = CliRunner().invoke(main, line)

    assert result.exit_code == 1
    assert "wrong value: " in result.output


_CHAIN = SpecSettings(algorithm=Algorithm.STANDALONE, topk=1, num_steps=3, num_draft_tokens=4)


def crowded(num_pages: int) -> Trace:
    """Let many requests run in few pages, while prompts join their steps in chunks."""
    speculation = Speculation(settings=_CHAIN, host_seq_lens=HostSeqLens.NONE, two_batch=False)
    return replace(
        Trace.drafting(0),
        speculation=speculation,
        backends=Backends.PADDED,
        replayed=None,
        overlapped=True,
        mixed=True,
        page_size=1,
        max_running_requests=32,
        max_total_tokens=num_pages,
        chunked_prefill_size=4,
    )


@pytest.mark.parametrize("num_pages", [120, 140, 180, 200])
def test_mixed_steps_of_many_drafts_have_their_pages(num_pages: int, folder: Path) -> None:
    """However full the KV cache is, a prompt takes no page that a running request's step needs."""
    trace = crowded(num_pages)

    outputs = make_engine(trace, folder, "cpu").generate(
        [[place, 7 * place % 64, 3] for place in range(12)],
        sampling=Sampling(max_new_tokens=20, stop_token_ids=frozenset()),
    )

    assert [len(output) for output in outputs] == [20] * 12
