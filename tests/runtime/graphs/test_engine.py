from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from backend_caps.conformance.simulator import simulate
from backend_caps.relay import DeviceStreams
from backend_caps.runtime.batch import ForwardMode
from backend_caps.runtime.engine import Engine
from backend_caps.runtime.model.drafts import first_layers
from backend_caps.runtime.options import EngineOptions
from backend_caps.runtime.stats import StepStats
from tests.runtime.engines import plan_of, run
from tests.runtime.graphs.rig import SIMULATED
from tests.runtime.observed import Kept
from tests.runtime.oracle import Oracle

OPTIONS = EngineOptions(
    max_running_requests=6,
    chunked_prefill_size=48,
    graph_batch_sizes=(1, 3),
    graph_token_counts=(16, 64),
)


class Replays:
    """Note which steps a graph ran."""

    def __init__(self) -> None:
        self.noted: list[bool] = []

    def observe(self, stats: StepStats) -> None:
        """Note a step."""
        self.noted.append(stats.replayed)


@pytest.mark.parametrize("mixed", [(), ("--enable-mixed-chunk",)], ids=["apart", "mixed"])
@pytest.mark.parametrize("schedule", ["lazy", "starve:2"])
def test_engine_replays_every_step(schedule: str, mixed: tuple[str, ...], oracle: Oracle) -> None:
    """Prefill, decode and mixed steps all run as graphs, and give the tokens of transformers."""
    plan = plan_of("--attention-backend", "torch_padded", *mixed)
    replays, jobs = Replays(), oracle.jobs[50:62]

    with simulate(schedule):
        streams = DeviceStreams("sim", SIMULATED)
        engine = Engine(
            oracle.folder, plan, "sim", options=OPTIONS, observer=replays, streams=streams
        )
        tokens = run(engine, jobs)

    assert tokens == oracle.tokens[50:62]
    assert all(replays.noted)


@pytest.mark.parametrize("topk", ["1", "3"], ids=["chain", "tree"])
@pytest.mark.parametrize("algorithm", ["STANDALONE", "NGRAM"])
def test_engine_replays_every_verify(
    algorithm: str, topk: str, oracle: Oracle, tmp_path: Path
) -> None:
    """Verifies run as graphs and prompts eagerly, and give the tokens of transformers."""
    sizes = ("--speculative-eagle-topk", topk, "--speculative-num-steps", "2")
    plan = plan_of(
        "--attention-backend", "torch_padded", "--speculative-algorithm", algorithm, *sizes
    )
    first_layers(tmp_path, oracle.folder)
    kept, jobs = Kept(), oracle.jobs[50:56]

    with simulate("lazy"):
        engine = Engine(
            oracle.folder,
            plan,
            "sim",
            options=replace(OPTIONS, max_running_requests=4),
            observer=kept,
            draft_model_path=tmp_path if algorithm == "STANDALONE" else None,
            streams=DeviceStreams("sim", SIMULATED),
        )
        tokens = run(engine, jobs)

    assert tokens == oracle.tokens[50:56]
    replayed = {(step.mode, step.replayed) for step in kept.steps}
    assert replayed == {(ForwardMode.DECODE, True), (ForwardMode.EXTEND, False)}
