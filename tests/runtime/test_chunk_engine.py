"""The profile on a real engine, and a real prompt cut by what a profile comes to."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from backend_caps.runtime import Engine, EngineError, EngineOptions, ForwardBatch, StepStats
from backend_caps.runtime.batch import ForwardMode
from backend_caps.runtime.chunk_sizes import ChunkProfiler, ChunkSizes, ChunkTimeFit
from backend_caps.runtime.model.random_models import random_llama
from backend_caps.runtime.step import StepOutput, Worker
from tests.runtime.chunk_stage import BrokenKernelError
from tests.runtime.engines import NATIVE, leaks, make_engine, plan_of

LIMITS = (64, 16)
ARGUMENTS = (*NATIVE, "--page-size", "16")
VOCAB_SIZE = 500
"""As many tokens as are used; the model has a few more."""
PROMPT = tuple(token * 37 % VOCAB_SIZE for token in range(200))


class BrokenWorker(Worker):
    """A worker whose last kernel fails when the others have run."""

    def forward(self, batch: ForwardBatch) -> StepOutput:
        """Run the forward, and raise."""
        super().forward(batch)
        raise BrokenKernelError("out of memory")


class Chunks:
    """Note how many prompt tokens each step has."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def observe(self, stats: StepStats) -> None:
        """Note a step of prompts."""
        if stats.mode is ForwardMode.EXTEND:
            self.seen.append(stats.num_tokens)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a small model."""
    path = tmp_path_factory.mktemp("llama")
    random_llama(path, max_position_embeddings=1024)
    return path


@pytest.fixture
def engine(folder: Path, device: torch.device) -> Engine:
    """Make an engine with pages of 16 tokens."""
    return make_engine(folder, *ARGUMENTS, device=device)


def _profiler(engine: Engine, kind: type[Worker]) -> ChunkProfiler:
    forward = kind(engine.model, engine.backends, {}).forward
    return ChunkProfiler(forward, engine.resources, VOCAB_SIZE)


@pytest.mark.parametrize("kind", [Worker, BrokenWorker], ids=["that succeeds", "that fails"])
def test_profile_of_an_engine_leaves_no_trace(engine: Engine, kind: type[Worker]) -> None:
    """After a profile nothing is missing from the pools, and the engine's tokens are the same."""
    before = engine.generate([PROMPT], max_new_tokens=8)

    _profiler(engine, kind).profile(*LIMITS)

    engine.drain()
    assert leaks(engine) == (0, 0)
    assert engine.generate([PROMPT], max_new_tokens=8) == before


def test_prompt_in_dynamic_chunks_has_the_same_tokens(folder: Path, device: torch.device) -> None:
    """A prompt that the scheduler cuts by a fit is followed by what follows it in one piece."""
    chunks = Chunks()
    options = EngineOptions(chunked_prefill_size=96)
    engine = Engine.from_plan(folder, plan_of(*ARGUMENTS), device, options=options, observer=chunks)
    whole = make_engine(folder, *ARGUMENTS, device=device).generate([PROMPT], max_new_tokens=8)
    fit = ChunkTimeFit(a=1e-6, b=1e-5, c=1e-3)

    engine.waiting.chunk_sizes = ChunkSizes(chunked_prefill_size=96, granularity=16, fit=fit)
    cut = engine.generate([PROMPT], max_new_tokens=8)

    assert chunks.seen == [96, 32, 32, 16, 16, 8]
    assert cut == whole


def test_engine_that_balances_chunks_has_the_same_tokens(
    folder: Path, device: torch.device
) -> None:
    """Whatever the engine's own profile comes to cuts its prompts, and changes no token."""
    options = EngineOptions(chunked_prefill_size=64)
    engine = make_engine(folder, *ARGUMENTS, device=device, options=options)
    before = engine.generate([PROMPT], max_new_tokens=8)

    sizes = engine.balance_chunks()

    assert engine.waiting.chunk_sizes is sizes
    assert engine.generate([PROMPT], max_new_tokens=8) == before


def test_engine_without_chunks_has_none_to_balance(folder: Path, device: torch.device) -> None:
    """An engine that runs prompts whole says what to give it."""
    engine = make_engine(folder, *ARGUMENTS, device=device)

    with pytest.raises(EngineError, match="chunks of at most 0 tokens"):
        engine.balance_chunks()
