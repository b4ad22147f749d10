from __future__ import annotations

from dataclasses import replace

import pytest
from torch_native_caps import TORCH_NATIVE

from backend_caps import BatchKind, HostSeqLens, Phase, Role
from backend_caps.kit import Effort, Forward, Rig, Scenario, Subject
from backend_caps.kit.checks.overlap import SERVING
from backend_caps.kit.models import small_models
from backend_caps.kit.probes.server_traces import (
    ServedTrace,
    ServerTrace,
    longest_of,
    serve,
    sizes_of,
    trace_of,
)
from backend_caps.runtime.speculation import Algorithm
from tests.kit.made import HONEST, claiming
from tests.kit.specimens import SUBJECTS

NATIVE = Subject(name="torch_native", declaration=TORCH_NATIVE)
SEEDS = range(24)
SERVED = (Forward.DECODE, Forward.MIXED, Forward.VERIFY, Forward.TREE)


def _traces(forward: Forward, subject: Subject = HONEST, page_size: int = 1) -> list[ServerTrace]:
    scenario = Scenario(forward=forward, page_size=page_size)
    return [trace_of(subject, scenario, seed) for seed in SEEDS]


@pytest.mark.parametrize("page_size", [1, 16, 64])
@pytest.mark.parametrize("forward", SERVED)
def test_every_request_fits_alone(forward: Forward, page_size: int) -> None:
    """Each context fits into the cache with what steps write behind it, and into the model."""
    longest = longest_of(Scenario(forward=forward, page_size=page_size))

    for trace in _traces(forward, page_size=page_size):
        behind = 0 if trace.speculation is None else trace.speculation.lookahead
        lengths = [len(own.prompt) + own.sampling.max_new_tokens for own in trace.requests]
        assert max(lengths) <= longest
        assert max(lengths) + behind <= (trace.options.max_total_tokens or 0)


def test_traces_of_a_seed_are_the_same() -> None:
    """A case can be repeated."""
    assert _traces(Forward.TREE) == _traces(Forward.TREE)


def test_drafts_are_by_every_algorithm() -> None:
    """A head, a small model and the host draft, in turn."""
    found = [trace.speculation.algorithm for trace in _traces(Forward.TREE) if trace.speculation]

    assert found[:3] == [Algorithm.EAGLE, Algorithm.STANDALONE, Algorithm.NGRAM]


def test_drafts_are_by_the_host_where_no_draft_role_is_claimed() -> None:
    """Who serves the target alone verifies what the host looks up."""
    subject = claiming(roles=frozenset({Role.TARGET}))

    traces = _traces(Forward.VERIFY, subject)
    assert {own.speculation.algorithm for own in traces if own.speculation} == {Algorithm.NGRAM}


def test_what_is_not_claimed_is_not_tried() -> None:
    """Without graphs none is captured, and without two-batch overlap no batch is cut."""
    subject = claiming(graph_replay=frozenset(), two_batch_overlap=False)

    traces = [own for forward in SERVED for own in _traces(forward, subject)]
    assert not any(
        own.options.graph_batch_sizes or own.options.graph_token_counts for own in traces
    )
    assert not any(own.flags.enable_two_batch_overlap for own in traces)


@pytest.mark.parametrize("what", ["replayed", "two_batch", "paired", "mixed"])
def test_what_is_claimed_is_tried_in_some(what: str) -> None:
    """Each way to serve is drawn, and left out, somewhere."""
    traces = [own for forward in SERVED for own in _traces(forward)]

    found = {_ways(own)[what] for own in traces}
    assert found == {False, True}


def _ways(trace: ServerTrace) -> dict[str, bool]:
    return {
        "replayed": not trace.flags.disable_cuda_graph,
        "two_batch": trace.flags.enable_two_batch_overlap,
        "paired": trace.flags.prefill_attention_backend is not None,
        "mixed": trace.flags.enable_mixed_chunk,
    }


def test_prompts_are_replayed_where_their_kind_is_claimed() -> None:
    """A graph of prompts is captured for who claims mixed batches."""
    claims = [frozenset(BatchKind), frozenset({BatchKind.SINGLE_TOKEN_DECODE})]

    found = [
        {
            own.options.graph_token_counts
            for own in _traces(Forward.DECODE, claiming(graph_replay=k))
        }
        for k in claims
    ]
    assert [len(own) > 1 for own in found] == [True, False]


def test_plan_is_of_what_the_backend_declares() -> None:
    """Host lengths are at the backend's own level, in halves too: the engine asks for no more."""
    drafted = [own for own in _traces(Forward.VERIFY) if own.speculation]

    found = {
        (own.flags.enable_two_batch_overlap, own.plan(HONEST).host_seq_lens) for own in drafted
    }

    assert found == {(False, HostSeqLens.NONE), (True, HostSeqLens.NONE)}


def test_plan_of_a_pair_has_two_backends() -> None:
    """Prompts have an object of their own, which another name brings about."""
    trace = _traces(Forward.DECODE, NATIVE)[0]

    names = {use.phase: use.backend for use in trace.plan(NATIVE).uses}
    assert names == {Phase.PREFILL: "torch_native for prompts", Phase.DECODE: "torch_native"}


def test_plain_traces_ask_for_the_same() -> None:
    """What a run is compared with has the requests, room for all, and nothing overlapped."""
    trace = _traces(Forward.TREE)[1]

    plain = trace.undrafted
    assert [own.prompt for own in plain.requests] == [own.prompt for own in trace.requests]
    assert plain.plan(HONEST).flags.disable_overlap_schedule
    assert plain.summary == "no drafts, 1-token pages"


def _trace(forward: Forward, seed: int) -> tuple[ServerTrace, Scenario]:
    scenario = Scenario(forward=forward, num_heads=2, num_kv_heads=1)
    return trace_of(HONEST, scenario, seed), scenario


def _served(
    trace: ServerTrace, scenario: Scenario, device: str = "sim", subject: Subject = HONEST
) -> ServedTrace:
    rig = Rig(subject=subject, device=device)
    with small_models(trace.algorithm, sizes=sizes_of(scenario)) as models, rig.running():
        return serve(rig, trace, models)


@pytest.mark.parametrize("device", ["sim", "cpu"])
def test_requests_end_and_give_everything_back(device: str) -> None:
    """Requests that do not fit together are retracted, and end; rows and pages come back."""
    trace, scenario = _trace(Forward.DECODE, 0)

    served = _served(trace, scenario, device)

    assert served.num_retracted > 0
    assert served.leaks == []
    assert [len(own) for own in served.outputs] == [
        own.sampling.max_new_tokens for own in trace.requests
    ]


def test_traces_of_the_least_effort_retract() -> None:
    """Whatever is served, some request is run again from its prompt, at `Effort.quick()`."""
    cases = SERVING.cases(HONEST, Effort.quick())

    retracted = {
        own.scenario.forward: _served(trace_of(HONEST, own.scenario, own.seed), own.scenario, "cpu")
        for own in cases
        if own.scenario is not None
    }

    assert set(retracted) == {Forward.DECODE, Forward.MIXED, Forward.VERIFY, Forward.TREE}
    assert all(served.num_retracted for served in retracted.values())


def test_drafts_are_counted_by_where_they_begin() -> None:
    """Of each request it is known how many tokens each step gave, and from where on."""
    trace, scenario = _trace(Forward.VERIFY, 0)

    served = _served(trace.plain, scenario)

    counts = [sum(own.values()) for own in served.accepted.values()]
    # The first token of each is its prompt's.
    assert counts == [len(own) - 1 for own in served.outputs]


def test_room_for_all_retracts_nobody() -> None:
    """What is compared with is a run without retractions."""
    trace, scenario = _trace(Forward.DECODE, 0)

    assert _served(trace.plain, scenario).num_retracted == 0


@pytest.mark.parametrize("name", ["slots_of_the_prompt", "length_of_the_prompt"])
def test_room_for_all_hides_who_fails_under_retraction(name: str) -> None:
    """Who minds a prompt that comes back makes the right tokens where none does."""
    subject = SUBJECTS[name]
    scenario = Scenario(forward=Forward.DECODE, num_heads=2, num_kv_heads=1)
    trace = trace_of(subject, scenario, 0)
    room = trace.plain.options.max_total_tokens
    roomy = replace(trace, options=replace(trace.options, max_total_tokens=room))

    plain, alone, retracted = (
        _served(own, scenario, "cpu", subject).outputs for own in (trace.plain, roomy, trace)
    )

    assert alone == plain
    assert retracted != plain
