"""A small random Llama, prompts for it, and what transformers says that follows them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

VOCAB_SIZE = 199
CONTEXT_LEN = 256
NUM_JOBS = 200
MAX_PROMPT_LEN = 100
MAX_NEW_TOKENS = 24
STOPS = (2, 17, 90)
_PADDING = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A prompt, and the most tokens of its output."""

    prompt: tuple[int, ...]
    max_new_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Oracle:
    """The model's folder, and what is right for it."""

    folder: Path
    jobs: Sequence[Job]
    tokens: Sequence[list[int]]
    """What follows each job's prompt."""


def ask_transformers(folder: Path) -> Oracle:
    """Make a model whose outputs vary, save it, and generate greedily with it."""
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT_LEN,
        initializer_range=0.3,
        eos_token_id=list(STOPS),
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = LlamaForCausalLM(config)
    model.train(mode=False)
    model.save_pretrained(folder)
    jobs = _jobs()
    return Oracle(folder=folder, jobs=jobs, tokens=tokens_of(model, jobs))


def _jobs() -> Sequence[Job]:
    """Draw prompts of every length, tokens that stop an output and padding tokens included."""
    draw = random.Random(4)  # noqa: S311 - a table of inputs, not a secret
    return [
        Job(
            prompt=tuple(draw.randrange(VOCAB_SIZE) for _ in range(1 + place % MAX_PROMPT_LEN)),
            max_new_tokens=draw.randint(1, MAX_NEW_TOKENS),
        )
        for place in range(NUM_JOBS)
    ]


def tokens_of(model: LlamaForCausalLM, jobs: Sequence[Job]) -> Sequence[list[int]]:
    """Generate for all prompts at once, padded on the left, and cut each output where it ends."""
    padding = [[_PADDING] * (MAX_PROMPT_LEN - len(job.prompt)) for job in jobs]
    ids = [[*pad, *job.prompt] for pad, job in zip(padding, jobs, strict=True)]
    mask = [[0] * len(pad) + [1] * (MAX_PROMPT_LEN - len(pad)) for pad in padding]
    generated = model.generate(  # type: ignore[misc] # transformers mistypes its own self
        torch.tensor(ids),
        attention_mask=torch.tensor(mask),
        max_new_tokens=MAX_NEW_TOKENS,
        do_sample=False,
        eos_token_id=list(STOPS),
        pad_token_id=_PADDING,
    )
    assert isinstance(generated, Tensor), "nothing but tokens was asked for"
    outputs: list[list[int]] = generated[:, MAX_PROMPT_LEN:].tolist()
    return [_cut(own, job.max_new_tokens) for own, job in zip(outputs, jobs, strict=True)]


def _cut(output: list[int], max_new_tokens: int) -> list[int]:
    """Cut what was generated behind its first stop token, or at its own length."""
    ends = [place + 1 for place, token in enumerate(output) if token in STOPS]
    return output[: min([*ends, max_new_tokens])]
