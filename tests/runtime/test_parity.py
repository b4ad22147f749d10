"""Whatever the loop, the cutting and the pages: the tokens are those of transformers."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from backend_caps import BatchKind, HostSeqLens, Phase, Plan, Registry
from backend_caps.runtime import Engine, EngineError, EngineOptions, Request, StepStats
from backend_caps.runtime.batch import ForwardMode
from backend_caps.simulator import simulate
from tests.cases import axis
from tests.property.strategies import law
from tests.runtime import engines
from tests.runtime.churn import is_aborted, num_retractions, run_with_churn, up_to_aborts
from tests.runtime.composites import install, plan_of
from tests.runtime.engines import LOOPS, leaks, make_engine, run, submit
from tests.runtime.oracle import Oracle

pytestmark = pytest.mark.no_cover  # run by other tests too, and twice as fast untraced

MIXES = [pytest.param((), id="not mixed"), pytest.param(("--enable-mixed-chunk",), id="mixed")]
PAIR = (
    *("--prefill-attention-backend", "torch_native"),
    *("--decode-attention-backend", "torch_padded"),
)
BACKENDS = [
    pytest.param(("--attention-backend", "torch_padded"), id="torch_padded"),
    pytest.param(PAIR, id="torch_native prefills, torch_padded decodes"),
    pytest.param(("--attention-backend", "flex_attention"), id="flex_attention"),
]
# One request at a time: how bfloat16 rounds may depend on what else is in a batch.
BF16 = EngineOptions(dtype=torch.bfloat16, max_running_requests=1)
# Its longest request needs 124 tokens: two requests are often too many.
BARELY = EngineOptions(max_total_tokens=128, max_running_requests=8, chunked_prefill_size=24)


@axis("loop", engines.LOOPS)
@axis("mixed", MIXES)
@axis("chunk", [pytest.param(None, id="whole prompts"), pytest.param(48, id="chunked")])
@axis("page_size", [1, 16])
def test_tokens_equal_those_of_transformers(
    oracle: Oracle,
    device: torch.device,
    loop: tuple[str, ...],
    mixed: tuple[str, ...],
    chunk: int | None,
    page_size: int,
) -> None:
    """In every loop, cutting, page size and mix, the tokens of 200 prompts are transformers'."""
    arguments = (*loop, *mixed, "--page-size", str(page_size))
    options = EngineOptions(chunked_prefill_size=chunk)
    engine = engines.make_engine(oracle.folder, *arguments, device=device, options=options)

    tokens = engines.run(engine, oracle.jobs)

    assert (tokens, engines.leaks(engine)) == (oracle.tokens, (0, 0))


@axis("loop", engines.LOOPS)
@axis("mixed", MIXES)
@axis("page_size", [1, 4])
def test_retracted_requests_end_with_the_tokens_of_transformers(
    oracle: Oracle,
    device: torch.device,
    loop: tuple[str, ...],
    mixed: tuple[str, ...],
    page_size: int,
) -> None:
    """A KV cache so small that requests are taken out and computed anew changes no token."""
    arguments = (*loop, *mixed, "--page-size", str(page_size))
    engine = engines.make_engine(
        oracle.folder, *arguments, device=device, options=engines.SMALL_CACHE
    )
    requests = [engines.submit(engine, job) for job in oracle.jobs[:100]]

    engine.drain()

    assert num_retractions(requests) > 2
    assert [request.output for request in requests] == oracle.tokens[:100]
    assert engines.leaks(engine) == (0, 0)


@axis("loop", engines.LOOPS)
@axis("mixed", MIXES)
@axis(
    "options",
    [pytest.param(EngineOptions(), id="roomy"), pytest.param(BARELY, id="barely room for one")],
)
def test_churn_changes_no_token(
    oracle: Oracle,
    device: torch.device,
    loop: tuple[str, ...],
    mixed: tuple[str, ...],
    options: EngineOptions,
) -> None:
    """Whoever comes or is given up meanwhile: tokens stay right, up to where one was given up."""
    engine = engines.make_engine(oracle.folder, *loop, *mixed, device=device, options=options)

    requests = run_with_churn(engine, oracle.jobs[:100], seed=1)

    assert sum(len(own.output) > 0 for own in requests if is_aborted(own)) > 1
    assert [own.output for own in requests] == up_to_aborts(requests, oracle.tokens[:100])
    assert engines.leaks(engine) == (0, 0)


@axis("loop", engines.LOOPS)
@axis("backends", BACKENDS)
def test_backends_give_the_tokens_of_transformers(
    oracle: Oracle, device: torch.device, loop: tuple[str, ...], backends: tuple[str, ...]
) -> None:
    """Other plugins, and a pair of two, give transformers' tokens too, chunked and mixed."""
    options = EngineOptions(chunked_prefill_size=48)
    arguments = (*loop, *backends, "--enable-mixed-chunk", "--page-size", "16")
    engine = engines.make_engine(oracle.folder, *arguments, device=device, options=options)

    tokens = engines.run(engine, oracle.jobs[:100])

    assert (tokens, engines.leaks(engine)) == (oracle.tokens[:100], (0, 0))


@pytest.mark.slow
@pytest.mark.parametrize(
    "num_jobs", [3, pytest.param(200, marks=[pytest.mark.soak, pytest.mark.timeout(7200)])]
)
def test_interpreted_kernels_give_the_tokens_of_transformers(
    oracle: Oracle, monkeypatch: pytest.MonkeyPatch, num_jobs: int
) -> None:
    """So does `triton` on the host, whose interpreter takes seconds for each prompt."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    plan = _on_the_host(engines.plan_of("--attention-backend", "triton", "--page-size", "16"))

    with Engine.from_plan(oracle.folder, plan, "cpu") as engine:
        tokens = engines.run(engine, oracle.jobs[:num_jobs])

    assert (tokens, engines.leaks(engine)) == (oracle.tokens[:num_jobs], (0, 0))


@pytest.mark.slow
def test_bfloat16_tokens_are_the_same_in_both_loops(oracle: Oracle, device: torch.device) -> None:
    """In bfloat16 the overlapped loop gives the tokens of the plain one."""
    overlapped = engines.make_engine(oracle.folder, device=device, options=BF16)
    plain = engines.make_engine(oracle.folder, *engines.PLAIN_LOOP, device=device, options=BF16)

    assert engines.run(overlapped, oracle.jobs[:50]) == engines.run(plain, oracle.jobs[:50])
    assert engines.leaks(overlapped) == (0, 0)


def _on_the_host(plan: Plan) -> Plan:
    """Let backends run where they are interpreted, which none declares."""
    uses = []
    for use in plan.uses:
        assert use.declaration is not None, "a plan of installed backends"
        capabilities = use.declaration.capabilities.model_copy(update={"devices": {"cpu"}})
        own = use.declaration.model_copy(update={"capabilities": capabilities})
        uses.append(replace(use, declaration=own))
    return replace(plan, uses=tuple(uses))


SPECULATION = (
    *("--speculative-algorithm", "EAGLE", "--speculative-num-steps", "3"),
    *("--context-length", "256"),
)
GRAPHS = EngineOptions(
    max_running_requests=4,
    chunked_prefill_size=16,
    graph_batch_sizes=(1, 4),
    graph_token_counts=(16,),
)


class Steps:
    """Note which kinds of step a graph ran."""

    def __init__(self) -> None:
        self.replayed: dict[ForwardMode, set[bool]] = {}

    def observe(self, stats: StepStats) -> None:
        """Note a step."""
        self.replayed.setdefault(stats.mode, set()).add(stats.replayed)


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Registry:
    """Install the composites once."""
    return install(tmp_path_factory.mktemp("composites"))


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("name", ["pair", "around", "by_page"])
def test_composites_give_the_tokens_of_transformers(
    registry: Registry, oracle: Oracle, loop: tuple[str, ...], name: str
) -> None:
    """Two backends by phase, a composite inside another, and parts by a fact, run as declared."""
    plan = plan_of(registry, "--attention-backend", name, "--page-size", "16", *loop)
    engine = Engine.from_plan(oracle.folder, plan, "cpu")

    assert (run(engine, oracle.jobs[:40]), leaks(engine)) == (oracle.tokens[:40], (0, 0))


@pytest.mark.parametrize(
    ("name", "page_size", "prefills", "decodes"),
    [
        ("pair", 16, "torch_native", "torch_padded"),
        ("around", 1, "torch_native", "torch_padded"),
        ("by_page", 16, "torch_padded", "torch_padded"),
        ("by_page", 1, "torch_native", "torch_native"),
    ],
)
def test_each_phase_is_run_by_the_part_that_takes_it(
    registry: Registry, oracle: Oracle, name: str, page_size: int, prefills: str, decodes: str
) -> None:
    """The engine builds the parts, and no object stands between them and the model."""
    plan = plan_of(registry, "--attention-backend", name, "--page-size", str(page_size))

    engine = Engine.from_plan(oracle.folder, plan, "cpu")

    names = {phase: use.backend for phase, use in engine.backends.uses.items()}
    assert names == {Phase.PREFILL: prefills, Phase.DECODE: decodes}


def test_graphless_part_takes_no_graphs_from_the_other(registry: Registry, oracle: Oracle) -> None:
    """Decode replays the part that declares it, prefill runs the one that does not; tokens hold."""
    plan = plan_of(registry, "--attention-backend", "pair", "--page-size", "16")
    steps = Steps()

    with simulate("lazy"):
        engine = Engine.from_plan(oracle.folder, plan, "sim", options=GRAPHS, observer=steps)
        tokens = run(engine, oracle.jobs[:8])

    assert tokens == oracle.tokens[:8]
    assert steps.replayed == {ForwardMode.DECODE: {True}, ForwardMode.EXTEND: {False}}
    assert plan["graph_replay", Phase.PREFILL].value == frozenset()
    assert plan["graph_replay", Phase.DECODE].value == frozenset(BatchKind)


@pytest.mark.parametrize(
    ("name", "level", "part"),
    [
        ("pair", HostSeqLens.NONE, "torch_padded"),
        ("around", HostSeqLens.NONE, "torch_padded"),
        ("by_page", HostSeqLens.EXACT, "torch_native"),
    ],
)
def test_needs_and_causes_are_those_of_the_parts(
    registry: Registry, name: str, level: HostSeqLens, part: str
) -> None:
    """What runs in the relay's loop says what it reads, by its own name and the way to it."""
    plan = plan_of(registry, "--attention-backend", name, "--page-size", "1", *SPECULATION)
    resolved = plan["host_seq_lens"]

    assert resolved.value is level
    assert {(cause.name, cause.via[0]) for cause in resolved.causes} == {(part, name)}


def test_parts_that_share_a_phase_are_refused(registry: Registry, oracle: Oracle) -> None:
    """Which layer goes to whom is not declared, so two parts of one phase are an error by name."""
    plan = plan_of(registry, "--attention-backend", "clash")

    with pytest.raises(EngineError, match="is shared by 'torch_native', 'torch_padded'; one"):
        Engine.from_plan(oracle.folder, plan, "cpu")


# Prompts of 1 to 40 tokens; two of the longest, which need up to 64, do not fit together.
_JOBS = range(40)
_ENOUGH_STEPS = 3000


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Requests, when each comes, and when some are given up."""

    arrivals: list[tuple[int, int]]
    """(step, number of the job)."""
    aborts: dict[int, int]
    """By step, the place of the request that is given up then, where it has come."""
    num_tokens: int
    """What the KV cache holds."""
    num_rows: int
    chunk: int | None
    page_size: int
    is_mixed: bool

    @property
    def arguments(self) -> tuple[str, ...]:
        """Say the workload's flags."""
        mixed = ("--enable-mixed-chunk",) if self.is_mixed else ()
        return (*mixed, "--page-size", str(self.page_size))

    @property
    def options(self) -> EngineOptions:
        """Say the workload's options."""
        return EngineOptions(
            max_total_tokens=self.num_tokens,
            max_running_requests=self.num_rows,
            chunked_prefill_size=self.chunk,
        )


_WORKLOADS = st.builds(
    Workload,
    arrivals=st.lists(
        st.tuples(st.integers(0, 8), st.sampled_from(_JOBS)), min_size=2, max_size=9
    ).map(sorted),
    aborts=st.dictionaries(st.integers(0, 40), st.integers(0, 8), max_size=4),
    num_tokens=st.sampled_from([64, 80]),
    num_rows=st.integers(1, 6),
    chunk=st.sampled_from([4, 7, 16, 24, None]),
    page_size=st.sampled_from([1, 4, 16]),
    is_mixed=st.booleans(),
)


def _run(engine: Engine, oracle: Oracle, workload: Workload) -> list[Request]:
    """Run a workload to its end, which has to come."""
    requests: list[Request] = []
    last = workload.arrivals[-1][0]
    for step in range(_ENOUGH_STEPS):
        if step > last and not engine.scheduler.has_work:
            return requests
        requests += [
            submit(engine, oracle.jobs[job]) for at, job in workload.arrivals if at == step
        ]
        place = workload.aborts.get(step)
        if place is not None and place < len(requests):
            engine.abort(requests[place])
        engine.step()
    pytest.fail(f"after {_ENOUGH_STEPS} steps there is work left")


@pytest.mark.slow
@pytest.mark.parametrize("loop", LOOPS)
@given(workload=_WORKLOADS)
@settings(law, max_examples=40)
def test_every_workload_drains(oracle: Oracle, loop: tuple[str, ...], workload: Workload) -> None:
    """In both loops every request ends with its tokens, and rows and pages are free again."""
    engine = make_engine(oracle.folder, *loop, *workload.arguments, options=workload.options)

    requests = _run(engine, oracle, workload)

    tokens = [oracle.tokens[job] for _, job in workload.arrivals]
    assert all(request.is_finished for request in requests)
    assert [request.output for request in requests] == up_to_aborts(requests, tokens)
    assert leaks(engine) == (0, 0)
