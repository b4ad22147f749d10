"""The engine with the backend, over wrappers that compute in plain PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from backend_caps import Plan, ServerFlags, discover, resolve
from backend_caps.runtime.batch import ForwardMode
from backend_caps.runtime.engine import Engine
from backend_caps.runtime.model.random_models import first_layers
from backend_caps.runtime.options import EngineOptions
from backend_caps.simulator import simulate
from backend_caps.startup.graph_modes import GraphMode
from tests.runtime.engines import run
from tests.runtime.observed import Kept
from tests.runtime.oracle import Oracle, ask_transformers

from .anywhere import ANYWHERE

pytestmark = [pytest.mark.usefixtures("fake_flashinfer"), pytest.mark.slow]

OPTIONS = EngineOptions(
    max_running_requests=6, chunked_prefill_size=48, graph_batch_sizes=(1, 3, 6)
)
SOME = slice(50, 55)
FLAGS = [
    pytest.param((), id="prefill and decode"),
    pytest.param(("--enable-mixed-chunk", "--page-size", "16"), id="mixed, in pages"),
    pytest.param(("--enable-two-batch-overlap",), id="two batches"),
]
TREES = [
    pytest.param(("--speculative-eagle-topk", "1"), id="chains"),
    pytest.param(("--speculative-eagle-topk", "3"), id="trees"),
]


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Oracle:
    """Ask transformers for the tokens that every backend has to give."""
    return ask_transformers(tmp_path_factory.mktemp("llama"))


@pytest.mark.parametrize("flags", FLAGS)
def test_engine_gives_the_tokens_of_transformers(oracle: Oracle, flags: Sequence[str]) -> None:
    """Every step is planned by lengths that the engine's host has, and decode is replayed."""
    kept = Kept()

    with simulate("lazy"):
        engine = Engine.from_plan(
            oracle.folder, _plan(*flags), "sim", options=OPTIONS, observer=kept
        )
        tokens = run(engine, oracle.jobs[SOME])

    assert tokens == oracle.tokens[SOME]
    modes = {step.graph_mode for step in kept.steps if step.mode is ForwardMode.DECODE}
    assert modes == {GraphMode.FULL}


@pytest.mark.parametrize("width", TREES)
@pytest.mark.parametrize("algorithm", ["NGRAM", "STANDALONE"])
def test_engine_speculates_with_the_tokens_of_transformers(
    oracle: Oracle, tmp_path: Path, algorithm: str, width: Sequence[str]
) -> None:
    """Drafts and their verifies are planned too, trees by their masks."""
    sizes = (*width, "--speculative-num-steps", "2")
    plan = _plan("--speculative-algorithm", algorithm, *sizes)
    first_layers(tmp_path, oracle.folder)
    drafts = tmp_path if algorithm == "STANDALONE" else None

    with simulate("lazy"):
        engine = Engine.from_plan(
            oracle.folder, plan, "sim", options=OPTIONS, draft_model_path=drafts
        )
        tokens = run(engine, oracle.jobs[SOME])

    assert tokens == oracle.tokens[SOME]


def _plan(*arguments: str) -> Plan:
    """Resolve a plan whose every use is the backend, with what the stand-in takes."""
    registry = discover()
    flags = ServerFlags.from_argv(("--attention-backend", "flashinfer", *arguments))
    uses = [replace(use, declaration=ANYWHERE) for use in registry.uses(flags)]
    return resolve(uses, flags, rules=registry.rules("sglang-0.5.13"), policy="quiet")
