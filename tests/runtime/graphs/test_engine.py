from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from backend_caps.runtime import Engine, EngineOptions, GraphMode
from backend_caps.runtime.batch import ForwardMode
from backend_caps.runtime.model import first_layers
from backend_caps.simulator import simulate
from tests.cases import axis
from tests.runtime.engines import PLAIN_LOOP, plan_of, run
from tests.runtime.observed import Kept
from tests.runtime.oracle import Oracle

FULL, PIECEWISE, EAGER = GraphMode
NO_PIECES, ENFORCED = "--disable-piecewise-cuda-graph", "--enforce-piecewise-cuda-graph"
PADDED_DECODE = ("--decode-attention-backend", "torch_padded")
BACKENDS = ("torch_padded", "torch_native")
OPTIONS = EngineOptions(
    max_running_requests=6,
    chunked_prefill_size=48,
    graph_batch_sizes=(1, 3),
    graph_token_counts=(16, 48),
)


@axis("mixed", [(), ("--enable-mixed-chunk",)], ids=["apart", "mixed"])
@axis("schedule", ["lazy", "starve:2"])
def test_engine_replays_every_step(schedule: str, mixed: tuple[str, ...], oracle: Oracle) -> None:
    """Prefill, decode and mixed steps all run as graphs, and give the tokens of transformers."""
    plan = plan_of("--attention-backend", "torch_padded", *mixed)
    kept, jobs = Kept(), oracle.jobs[50:62]
    options = replace(OPTIONS, graph_token_counts=(16, 53)) if mixed else OPTIONS

    with simulate(schedule):
        engine = Engine.from_plan(oracle.folder, plan, "sim", options=options, observer=kept)
        tokens = run(engine, jobs)

    assert tokens == oracle.tokens[50:62]
    assert {step.graph_mode for step in kept.steps} == {FULL}


@axis("topk", ["1", "3"], ids=["chain", "tree"])
@axis("algorithm", ["STANDALONE", "NGRAM"])
def test_engine_replays_every_verify(
    algorithm: str, topk: str, oracle: Oracle, tmp_path: Path
) -> None:
    """Verifies run as full graphs, prompts in pieces, and both give the tokens of transformers."""
    sizes = ("--speculative-eagle-topk", topk, "--speculative-num-steps", "2")
    plan = plan_of(
        "--attention-backend", "torch_padded", "--speculative-algorithm", algorithm, *sizes
    )
    first_layers(tmp_path, oracle.folder)
    kept, jobs = Kept(), oracle.jobs[50:56]

    with simulate("lazy"):
        engine = Engine.from_plan(
            oracle.folder,
            plan,
            "sim",
            options=replace(OPTIONS, max_running_requests=4),
            observer=kept,
            draft_model_path=tmp_path if algorithm == "STANDALONE" else None,
        )
        tokens = run(engine, jobs)

    assert tokens == oracle.tokens[50:56]
    ran = {(step.mode, step.graph_mode) for step in kept.steps}
    assert ran == {(ForwardMode.DECODE, FULL), (ForwardMode.EXTEND, PIECEWISE)}


@axis(
    ("backend", "flags", "expected"),
    [
        pytest.param("torch_padded", (), (FULL, FULL), id="full"),
        pytest.param("torch_padded", (ENFORCED,), (PIECEWISE, FULL), id="prompts in pieces"),
        pytest.param("torch_native", (), (PIECEWISE, PIECEWISE), id="pieces"),
        pytest.param("torch_native", PADDED_DECODE, (PIECEWISE, FULL), id="a pair"),
        pytest.param("torch_native", (NO_PIECES,), (EAGER, EAGER), id="no pieces"),
        pytest.param("torch_padded", ("--disable-cuda-graph",), (EAGER, EAGER), id="eager"),
        pytest.param("torch_padded", PLAIN_LOOP, (FULL, FULL), id="full in the plain loop"),
        pytest.param("torch_native", PLAIN_LOOP, (PIECEWISE, PIECEWISE), id="pieces, plain loop"),
    ],
)
def test_engine_gives_the_same_tokens_in_every_mode(
    backend: str, flags: tuple[str, ...], expected: tuple[GraphMode, GraphMode], oracle: Oracle
) -> None:
    """Full, in pieces and eagerly: the tokens are those of transformers, and nothing races."""
    plan = plan_of("--attention-backend", backend, *flags)
    kept, jobs = Kept(), oracle.jobs[50:62]

    with simulate("lazy", check_races=True) as simulation:
        engine = Engine.from_plan(oracle.folder, plan, "sim", options=OPTIONS, observer=kept)
        tokens = run(engine, jobs)

    assert tokens == oracle.tokens[50:62]
    ran = {step.mode: step.graph_mode for step in kept.steps}
    assert (ran[ForwardMode.EXTEND], ran[ForwardMode.DECODE]) == expected
    assert simulation.races == ()


@axis("schedule", ["starve:1", "starve:2", "random:3"])
@axis("topk", ["1", "3"], ids=["chain", "tree"])
def test_engine_runs_mixed_and_verified_steps_in_pieces(
    topk: str, schedule: str, oracle: Oracle
) -> None:
    """Verifies of trees, and prompts that are mixed with them, run in pieces in any order."""
    backend = "torch_native" if topk == "1" else "torch_padded"
    spoken = ("--speculative-algorithm", "NGRAM", "--speculative-eagle-topk", topk)
    plan = plan_of("--attention-backend", backend, "--enable-mixed-chunk", *spoken)
    kept, jobs = Kept(), oracle.jobs[50:56]
    rows = replace(OPTIONS, graph_batch_sizes=(), max_running_requests=4)
    options = replace(rows, graph_token_counts=(16, 51))

    with simulate(schedule):
        engine = Engine.from_plan(oracle.folder, plan, "sim", options=options, observer=kept)
        tokens = run(engine, jobs)

    assert tokens == oracle.tokens[50:56]
    assert {step.graph_mode for step in kept.steps} == {PIECEWISE}
