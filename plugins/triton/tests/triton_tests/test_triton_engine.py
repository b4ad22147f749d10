"""The backend in the engine: its tokens beside those of transformers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM
from triton_caps import TRITON

from backend_caps import BatchKind, Plan, ServerFlags, discover, resolve
from backend_caps.runtime import Engine, EngineOptions
from backend_caps.runtime.model.random_models import random_llama
from backend_caps.simulator import simulate

pytestmark = pytest.mark.slow

PROMPTS = [[5, 6, 7], [8], list(range(1, 40)), [10, 11, 12, 13, 14, 15, 16], [3] * 21]
NUM_NEW = 6
OPTIONS = EngineOptions(max_running_requests=3, chunked_prefill_size=16, graph_batch_sizes=(3,))


@dataclass(frozen=True, slots=True)
class Oracle:
    """A model's folder, and what transformers makes of the prompts with it."""

    folder: Path
    tokens: Sequence[Sequence[int]]


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Oracle:
    """Ask transformers once, greedily and prompt by prompt."""
    folder = tmp_path_factory.mktemp("llama")
    random_llama(folder, vocab_size=64, hidden_size=32, max_position_embeddings=64)
    model = LlamaForCausalLM.from_pretrained(folder)
    return Oracle(folder, [_generated(model, prompt) for prompt in PROMPTS])


def test_engine_gives_the_tokens_of_transformers(oracle: Oracle, device: torch.device) -> None:
    """Prompts that are cut and mixed with decode rows give transformers' tokens."""
    plan = _plan("--enable-mixed-chunk", "--page-size", "16", device=device.type)

    with Engine.from_plan(oracle.folder, plan, device, options=OPTIONS) as engine:
        tokens = engine.generate(PROMPTS, max_new_tokens=NUM_NEW)

    assert tokens == oracle.tokens


def test_engine_on_a_device_gives_them_too(oracle: Oracle) -> None:
    """With decode in graphs, and what the scheduler writes late, they are the same, and no race."""
    with simulate("starve:1", check_races=True) as run:
        engine = Engine.from_plan(oracle.folder, _plan(), "sim", options=OPTIONS)
        tokens = engine.generate(PROMPTS, max_new_tokens=NUM_NEW)
        engine.close()

    captured = [own.kind for own in engine.graph_choices if own.buckets]
    assert (tokens, run.races) == (oracle.tokens, ())
    assert captured == [BatchKind.SINGLE_TOKEN_DECODE]


def test_engine_verifies_trees(oracle: Oracle, device: torch.device) -> None:
    """Trees of drafts that are verified change no token."""
    arguments = ("--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", "4")
    plan = _plan(*arguments, "--speculative-eagle-topk", "2", device=device.type)

    with Engine.from_plan(oracle.folder, plan, device, options=OPTIONS) as engine:
        tokens = engine.generate(PROMPTS, max_new_tokens=NUM_NEW)

    assert tokens == oracle.tokens


def _plan(*arguments: str, device: str = "sim") -> Plan:
    """Resolve what a server's arguments ask, as if the declaration had the device too.

    A backend that declares a CPU is chosen for it, and this one declares none.
    """
    registry, flags = (
        discover(),
        ServerFlags.from_argv(["--attention-backend", "triton", *arguments]),
    )
    changed = TRITON.capabilities.model_copy(update={"devices": {"cuda", device}})
    own = TRITON.model_copy(update={"capabilities": changed})
    uses = [replace(use, declaration=own) for use in registry.uses(flags)]
    return resolve(uses, flags, rules=registry.rules("sglang-0.5.23"), policy="quiet")


def _generated(model: LlamaForCausalLM, prompt: list[int]) -> list[int]:
    generated = model.generate(  # type: ignore[misc] # transformers mistypes its own self
        torch.tensor([prompt]),
        max_new_tokens=NUM_NEW,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    assert isinstance(generated, torch.Tensor), "nothing but tokens was asked for"
    tokens: list[int] = generated[0, len(prompt) :].tolist()
    return tokens
