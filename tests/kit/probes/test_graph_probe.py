from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Never

import pytest
import torch
from torch import Tensor
from torch_native_caps import TORCH_NATIVE

from backend_caps import BatchKind, HostSeqLens, Phase, Role
from backend_caps.kit import Case, Effort, Forward, Rig, Scenario, Subject, difference
from backend_caps.kit.checks.overlap import SERVING
from backend_caps.kit.checks.replay import (
    GRAPHED,
    is_right,
    longest,
    replayed_of,
    story,
    wrong_replay,
)
from backend_caps.kit.models import small_models
from backend_caps.kit.probes.graph_probe import Graphs, batch_sizes_of, buckets_of
from backend_caps.kit.probes.server_traces import (
    ServedTrace,
    ServerTrace,
    longest_of,
    serve,
    sizes_of,
    trace_of,
)
from backend_caps.runtime.forward_batch import ForwardBatch
from backend_caps.runtime.speculation import Algorithm
from tests.kit.liars.bases import Padded
from tests.kit.made import HONEST, claiming
from tests.kit.specimen import subject_of
from tests.kit.specimens import SUBJECTS

DECODE = Scenario(forward=Forward.DECODE)
every_forward = pytest.mark.parametrize("forward", GRAPHED)


@pytest.fixture
def rig() -> Iterator[Rig]:
    """Make a rig of an honest backend, that runs."""
    rig = Rig(subject=HONEST)
    with rig.running():
        yield rig


class Straying(Padded):
    """Writes keys to the slot behind the first token's, too."""

    def after(self, batch: ForwardBatch, output: Tensor) -> Tensor:
        """Write there."""
        self._kv_pool.get_key_buffer(0).index_fill_(0, batch.out_cache_loc[:1] + 1, 7)
        return output


@every_forward
def test_replay_is_the_eager_run(forward: Forward) -> None:
    """One capture serves a batch of each size, and so does the same backend without a graph."""
    scenario, rig = Scenario(forward=forward), Rig(subject=HONEST)
    scene = story(scenario, 1, [3])[0]
    expected = rig.baseline(scene)

    with rig.running():
        graphs = Graphs(rig, scenario)
        graphs.capture()
        outputs = [graphs.launch(graphs.bring(scene)).attended(), graphs.run(scene).attended()]

    assert [difference(own, expected, graphs.tolerance) for own in outputs] == [None, None]


def test_replay_is_of_the_smallest_graph(rig: Rig) -> None:
    """A batch is padded to the next size that was captured."""
    graphs = Graphs(rig, DECODE)
    graphs.capture()
    padded: list[ForwardBatch] = []
    graphs.proxy.init_forward_metadata_out_graph = padded.append

    for scene in story(DECODE, 0, [3, 2, 1]):
        graphs.launch(graphs.bring(scene))

    assert [own.batch_size for own in padded] == [4, 2, 1]


def test_scene_is_loaded_over_the_one_before(rig: Rig) -> None:
    """Nothing that a scene left in the page table is there when the next one is loaded."""
    graphs = Graphs(rig, DECODE)
    first, second = story(DECODE, 0, [4, 1])
    graphs.load(graphs.bring(first))

    graphs.load(graphs.bring(second))

    assert torch.equal(graphs.pools.req_to_token.cpu(), second.pools.req_to_token)


def test_strays_are_slots_of_others(rig: Rig) -> None:
    """Neither the batch's own slots nor the padding's page are anybody else's."""
    scene = story(DECODE, 0, [3])[0]
    graphs = Graphs(rig, DECODE)
    graphs.capture()

    assert list(graphs.launch(graphs.bring(scene)).strays(scene)) == []


def test_stray_write_is_reported() -> None:
    """A replay whose output is right may have written to a slot that is not its own."""
    rig = Rig(subject=subject_of(Straying))
    scene = story(DECODE, 0, [1])[0]
    expected = [rig.baseline(scene)]
    slot = int(scene.batch.out_cache_loc) + 1

    with rig.running():
        graphs = Graphs(rig, DECODE)
        graphs.capture()
        wrong = wrong_replay(graphs, [scene], expected)

    assert wrong == (
        f"replay 1, of 1 requests, is not what its eager run is: it wrote to slots [{slot}], "
        f"which are not the batch's"
    )


@pytest.mark.parametrize(
    ("forward", "kind", "sizes"),
    [
        (Forward.DECODE, BatchKind.SINGLE_TOKEN_DECODE, [(1, 1), (2, 2), (4, 4)]),
        (Forward.VERIFY, BatchKind.UNIFORM_BATCH, [(1, 3), (2, 6), (4, 12)]),
        (Forward.TREE, BatchKind.UNIFORM_BATCH, [(1, 5), (2, 10), (4, 20)]),
        (Forward.MIXED, BatchKind.MIXED_BATCH, [(4, 9), (4, 16), (4, 32)]),
    ],
)
def test_buckets_are_of_the_kind_of_a_forward(
    forward: Forward, kind: BatchKind, sizes: list[tuple[int, int]]
) -> None:
    """A mixed batch has its tokens counted, and every other its requests."""
    buckets = buckets_of(Scenario(forward=forward), (1, 2, 4))

    assert {own.kind for own in buckets} == {kind}
    assert [(own.batch_size, own.num_tokens) for own in buckets] == sizes


@pytest.mark.parametrize("seed", range(4))
def test_story_has_what_graphs_go_wrong_at(seed: int) -> None:
    """A graph comes twice in a row, one is padded, and sizes go up and down."""
    counts = [scene.batch.batch_size for scene in story(DECODE, seed)]
    graphs = [next(size for size in batch_sizes_of(DECODE) if size >= count) for count in counts]
    steps = [later - own for own, later in pairwise(graphs)]

    assert 3 in counts
    assert 0 in steps
    assert min(steps) < 0 < max(steps)


def test_longest_is_of_several_draws() -> None:
    """A batch that makes a backend's memory grow has a context that is long."""
    drawn = story(DECODE, 2, [4, 4, 4])

    most = longest(DECODE, 2, 4)

    lengths = [int(scene.batch.seq_lens.max()) for scene in drawn]
    assert int(most.batch.seq_lens.max()) == max(lengths)


def test_forwards_with_graphs_are_those_of_claimed_kinds() -> None:
    """Graphs are replayed of the kinds of batches that are claimed, and of no others."""
    subject = claiming(graph_replay=frozenset({BatchKind.UNIFORM_BATCH}))

    assert replayed_of(subject) == (Forward.VERIFY, Forward.TREE)


def test_case_that_raises_is_not_right() -> None:
    """What a backend raises where it claims less is no reason to claim more."""

    def run(_rig: Rig, _case: Case) -> Never:
        raise ValueError("no such batch")

    assert not is_right(run, Rig(subject=HONEST), Case(check="replay"))


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
    traces = _traces(Forward.VERIFY, claiming(roles=frozenset({Role.TARGET})))
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

    assert {_ways(own)[what] for own in traces} == {False, True}


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
