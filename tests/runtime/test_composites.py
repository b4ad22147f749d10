"""Composites in the engine: declared by their parts, run by their parts."""

from __future__ import annotations

import pytest

from backend_caps import BatchKind, HostSeqLens, Phase, Registry
from backend_caps.runtime import Engine, EngineError, EngineOptions, StepStats
from backend_caps.runtime.batch import ForwardMode
from backend_caps.simulator import simulate
from tests.runtime.composites import install, plan_of
from tests.runtime.engines import LOOPS, leaks, run
from tests.runtime.oracle import Oracle

pytestmark = pytest.mark.no_cover  # run by other tests too

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

    tokens = run(engine, oracle.jobs[:40])

    assert (tokens, leaks(engine)) == (oracle.tokens[:40], (0, 0))


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
