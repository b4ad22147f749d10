"""The sizes of a dry run, and what is found where steps are not as the plan has them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from copy import copy
from dataclasses import replace
from itertools import islice

import pytest

from backend_caps import (
    Capabilities,
    Declaration,
    Phase,
    Plan,
    Role,
    RuleSet,
    ServerFlags,
    Use,
    discover,
    resolve,
)
from backend_caps.insight.dry_run import DryRun, RunFigures, dry_start
from backend_caps.insight.errors import InsightError
from backend_caps.insight.run_documents import Finding, findings_of
from backend_caps.insight.run_sizes import (
    LONGEST_CHUNK,
    MOST_NEW,
    MOST_REQUESTS,
    GraphSizes,
    RunSizes,
    ServerSizes,
    drawn,
)
from backend_caps.insight.stand_ins import RunPlan, run_plan
from backend_caps.runtime import GraphMode
from backend_caps.simulator import register, simulate


def _planned(**flags: object) -> RunPlan:
    register()
    registry = discover(allow=["backend-caps-torch-native"], environ={})
    said = ServerFlags.model_validate({"attention_backend": "torch_padded", **flags})
    return run_plan(
        resolve(registry.uses(said), said, rules=RuleSet.builtin("sglang-0.5.13")),
        registry,
        "sim",
        {},
    )


@pytest.fixture(scope="module")
def done() -> Iterator[DryRun]:
    """Steps of a speculative server without a mirror, all as planned."""
    run = _planned(
        speculative_algorithm="EAGLE",
        speculative_num_steps=2,
        speculative_eagle_topk=1,
        disable_piecewise_cuda_graph=True,
    )
    with simulate("eager") as simulation:
        server = ServerSizes(max_running_requests=2, chunked_prefill_size=16)
        with dry_start(run, server, "sim", simulation=simulation) as started:
            started.run_steps(6)
            yield started


def _eager(done: DryRun) -> RunFigures:
    """Return the figures of the same forwards, had none of them been replayed."""
    figures = copy(done.figures)
    figures.phases = {
        place: replace(own, modes=Counter({GraphMode.EAGER: 3}))
        for place, own in figures.phases.items()
    }
    return figures


def test_steps_as_planned_have_no_findings(done: DryRun) -> None:
    """Where all is as it was decided, nothing is reported."""
    assert [*findings_of(done)] == []


def test_lengths_that_no_plan_asks_for_are_reported(done: DryRun) -> None:
    """Waits for lengths are reported where the plan has no mirror."""
    figures = copy(done.figures)
    (first, seconds), *others = figures.kinds["speculative"]
    waiting = (replace(first, waits_for_lengths=True), seconds)
    figures.kinds = {**figures.kinds, "speculative": [waiting, *others]}

    found = findings_of(replace(done, figures=figures))

    assert [Finding(each.code) for each in found] == [Finding.LENGTHS]


def test_waits_that_a_gpu_shows_are_reported(done: DryRun) -> None:
    """Operators that CUDA's watch saw wait are reported where every backend claims to have none."""
    found = findings_of(replace(done, hidden=Counter({"item at my_flash.py:7": 2})))

    assert [(Finding(each.code), each.phase) for each in found] == [(Finding.WAIT, None)]


def test_captured_phase_without_a_replay_is_reported(done: DryRun) -> None:
    """A phase that was captured, and all of whose batches ran eagerly, is reported."""
    found = [*findings_of(replace(done, figures=_eager(done)))]

    assert {Finding(each.code) for each in found} == {Finding.GRAPHS}
    assert {each.phase for each in found} == {"draft", "verify", "draft_extend"}


def test_batches_that_the_server_captures_no_graph_for_are_as_decided(done: DryRun) -> None:
    """Where the server's own sizes leave batches to no graph, eager ones are no finding."""
    bound = GraphSizes(flag="--bs", largest_flag="--max-bs", largest=1)
    sizes = replace(done.sizes, server=ServerSizes(batches=bound))

    assert [*findings_of(replace(done, figures=_eager(done), sizes=sizes))] == []


def test_forwards_of_roles_are_counted_apart(done: DryRun) -> None:
    """Each role's forwards are there, the draft's by its own steps."""
    assert {role for role, _ in done.figures.phases} == set(Role)


def test_flag_that_is_not_served_cannot_start() -> None:
    """An engine that cannot be made is one error, in the words of what it refused."""
    run = _planned(enable_dp_attention=True)

    with (
        pytest.raises(InsightError, match="--enable-dp-attention"),
        dry_start(run, ServerSizes(), "cpu"),
    ):
        pass


def _plan(**flags: object) -> Plan:
    declaration = Declaration(capabilities=Capabilities(page_sizes="any", roles=frozenset(Role)))
    uses = [
        Use(backend="own", role=Role.TARGET, phase=phase, declaration=declaration)
        for phase in (Phase.PREFILL, Phase.DECODE)
    ]
    return resolve(uses, ServerFlags.model_validate(flags), rules=RuleSet.builtin("sglang-0.5.13"))


def test_small_sizes_are_the_servers() -> None:
    """What is small on the server is the same here."""
    server = ServerSizes(max_running_requests=3, chunked_prefill_size=32)

    sizes = RunSizes.of(_plan(page_size=16), server)

    found = (sizes.max_running_requests, sizes.chunked_prefill_size, sizes.page_size)
    assert found == (3, 32, 16)


def test_large_sizes_are_cut_down() -> None:
    """What is large on the server is smaller here."""
    server = ServerSizes(max_running_requests=256, chunked_prefill_size=8192)

    sizes = RunSizes.of(_plan(context_length=131072), server)

    found = (sizes.max_running_requests, sizes.chunked_prefill_size, sizes.context_length)
    assert found == (MOST_REQUESTS, LONGEST_CHUNK, 2 * LONGEST_CHUNK + MOST_NEW)


@pytest.mark.parametrize(
    ("said", "page_size", "chunk"),
    [
        pytest.param(-1, 1, None, id="prompts are not cut"),
        pytest.param(16, 64, 64, id="no chunk is below a page"),
        pytest.param(None, 1, LONGEST_CHUNK, id="not given"),
    ],
)
def test_chunk_is_what_the_engine_can_run(
    said: int | None, page_size: int, chunk: int | None
) -> None:
    """Prompts are cut as the server cuts them, within what a small run has."""
    sizes = RunSizes.of(_plan(page_size=page_size), ServerSizes(chunked_prefill_size=said))

    assert sizes.chunked_prefill_size == chunk


@pytest.mark.parametrize("context", [10, 40])
def test_short_context_keeps_requests_short(context: int) -> None:
    """No drawn request comes to more than the server's context."""
    sizes = RunSizes.of(_plan(context_length=context), ServerSizes())

    arrivals = islice(drawn(sizes, vocab_size=8, seed=1), 30)

    longest = max(len(prompt) + sampling.max_new_tokens for prompt, sampling in arrivals)
    assert longest <= sizes.context_length == context


def test_trace_mixes_lengths_of_prompts_by_its_seed() -> None:
    """Some prompts are short, and some longer than a chunk; one seed draws one trace."""
    sizes = RunSizes.of(_plan(), ServerSizes())

    one, other = ([*islice(drawn(sizes, vocab_size=8, seed=1), 9)] for _ in range(2))

    lengths = [len(prompt) for prompt, _ in one]
    assert min(lengths) <= 16 < LONGEST_CHUNK < max(lengths)
    assert one == other


def _batches(sizes: tuple[int, ...] | None = None, largest: int | None = None) -> GraphSizes:
    return GraphSizes(flag="--bs", largest_flag="--max-bs", sizes=sizes, largest=largest)


@pytest.mark.parametrize(
    ("said", "pads", "here"),
    [
        pytest.param(None, True, (1, 2, 4, 6), id="no flags for it"),
        pytest.param(_batches(), True, (1, 2, 4, 6), id="not given"),
        pytest.param(_batches(sizes=(16, 1, 3)), True, (1, 3, 6), id="list"),
        pytest.param(_batches(sizes=(2,)), True, (2,), id="small list"),
        pytest.param(_batches(largest=3), True, (1, 2, 3), id="bound"),
        pytest.param(_batches(largest=64), True, (1, 2, 4, 6), id="bound above the run"),
        pytest.param(_batches(sizes=(2,), largest=1), True, (2,), id="list before bound"),
        pytest.param(_batches(largest=3), False, (1, 2, 3), id="no padding"),
        pytest.param(None, False, (1, 2, 3, 4, 5, 6), id="no padding, not given"),
    ],
)
def test_graphs_are_captured_for_what_the_server_says(
    said: GraphSizes | None, here: tuple[int, ...], *, pads: bool
) -> None:
    """Sizes of graphs are the server's; none is above the largest batch of the run."""
    server = ServerSizes(max_running_requests=6, batches=said, pads_graphs=pads)

    options = RunSizes.of(_plan(), server).options

    assert (options.graph_batch_sizes, options.max_graph_batch_size) == (here, here[-1])
    assert options.pads_graphs is pads


def test_graphs_of_prompts_are_no_larger_than_a_step() -> None:
    """Numbers of tokens are the server's, cut to a chunk with the decode rows that join it."""
    server = ServerSizes(
        max_running_requests=4, chunked_prefill_size=32, tokens=_batches(sizes=(8, 256))
    )

    sizes = RunSizes.of(_plan(enable_mixed_chunk=True), server)

    assert sizes.options.graph_token_counts == (8, 32 + 3)


def test_graphs_of_a_short_context_fit_its_steps() -> None:
    """Where a chunk is longer than all requests together, no graph is."""
    sizes = RunSizes.of(_plan(context_length=10), ServerSizes(max_running_requests=1))

    assert sizes.options.graph_token_counts == (10,)


def test_sizes_that_are_not_the_servers_are_reported() -> None:
    """Beside each size that was given stands whether the run has it."""
    server = ServerSizes(
        max_running_requests=256,
        chunked_prefill_size=-1,
        batches=_batches(sizes=(256, 1)),
        tokens=_batches(largest=16),
    )

    told = RunSizes.of(_plan(), server).compared

    assert [(own.flag, own.server, own.here) for own in told if not own.is_servers] == [
        ("--max-running-requests", "256", "8"),
        ("--bs", "1, 256", "1, 8"),
    ]
    assert [own.flag for own in told if own.is_servers][-1] == "--max-bs"


def test_sizes_of_graphs_that_are_off_are_not_reported() -> None:
    """Without graphs there are no sizes of any."""
    told = RunSizes.of(
        _plan(disable_cuda_graph=True), ServerSizes(batches=_batches(sizes=(1,)))
    ).compared

    assert {own.flag for own in told}.isdisjoint({"--bs", "--max-bs"})


def test_graphs_of_single_phases_are_left_out() -> None:
    """Flags that a run cannot hold are named, with why."""
    sizes = RunSizes.of(_plan(), ServerSizes(of_phases=("--disable-decode-cuda-graph",)))

    (told,) = sizes.left_out
    assert told.startswith("--disable-decode-cuda-graph; ")


@pytest.mark.parametrize(
    ("server", "held"),
    [
        (ServerSizes(), (True, True)),
        (ServerSizes(batches=_batches(largest=4)), (False, True)),
        (ServerSizes(tokens=_batches(sizes=(8,))), (True, False)),
        (ServerSizes(batches=_batches(sizes=(1, 8)), pads_graphs=False), (False, True)),
        (ServerSizes(pads_graphs=False), (True, True)),
    ],
)
def test_graphs_hold_what_they_were_captured_for(
    server: ServerSizes, held: tuple[bool, bool]
) -> None:
    """A run knows which of its batches the server's sizes leave to no graph."""
    sizes = RunSizes.of(_plan(), server)

    assert (sizes.graphs_hold_batches, sizes.graphs_hold_prompts) == held
