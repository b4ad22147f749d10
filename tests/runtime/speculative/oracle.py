"""Small targets, drafts made of their first layers, and what transformers says that they say.

What the later layers of a target add is little, so that drafts of its first layer are often right
and often wrong. A **heedful** target goes by its whole context: what attention reads wrongly shows
in the tokens. A **forgetful** one goes by the last tokens for the most part, so it repeats what a
prompt repeats, and n-grams find it there.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import LlamaForCausalLM

from backend_caps.runtime.model.random_models import eagle3_of, eagle_of, first_layers, random_llama
from backend_caps.runtime.speculation import Algorithm
from tests.runtime.oracle import MAX_NEW_TOKENS, MAX_PROMPT_LEN, STOPS, VOCAB_SIZE, Job, tokens_of

CONTEXT_LEN = 128
"""The context that engines are given: the longest job ends five tokens before its end."""
NUM_JOBS = 40
_FORGETFUL = 0.005
"""How much of its attention a forgetful target is left with."""
_WEIGHTS = "model.safetensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A target's folder, its drafts, and what is right for it."""

    folder: Path
    drafts: Mapping[Algorithm, Path]
    """The folder of each draft model."""
    jobs: Sequence[Job]
    tokens: Sequence[list[int]]
    """What follows each job's prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """The two."""

    heedful: Target
    forgetful: Target

    def of(self, algorithm: Algorithm) -> Target:
        """Return the target that an algorithm drafts for with some success."""
        return self.forgetful if algorithm is Algorithm.NGRAM else self.heedful


def ask_transformers(folder: Path, num_jobs: int = NUM_JOBS) -> Targets:
    """Write both targets with their drafts, and generate greedily with them."""
    heedful, forgetful = folder / "heedful", folder / "forgetful"
    heedful_model = _written(heedful, attention=1)
    forgetful_model = _written(forgetful, attention=_FORGETFUL)
    drawn = _jobs(num_jobs)
    echoes = [
        job if place % 2 else echo
        for place, (job, echo) in enumerate(
            zip(drawn, _echoes(forgetful_model, drawn), strict=True)
        )
    ]
    return Targets(
        heedful=_target(heedful, heedful_model, drawn),
        forgetful=_target(forgetful, forgetful_model, echoes),
    )


def _written(folder: Path, attention: float) -> LlamaForCausalLM:
    """Write a target, its attention scaled, and let transformers read it."""
    random_llama(
        folder,
        vocab_size=VOCAB_SIZE,
        num_layers=3,
        later_gain=0.2,
        max_position_embeddings=CONTEXT_LEN,
    )
    weights = load_file(folder / _WEIGHTS)
    scaled = {
        name: weight * attention if "o_proj" in name else weight for name, weight in weights.items()
    }
    save_file(scaled, folder / _WEIGHTS, metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text("utf-8"))
    (folder / "config.json").write_text(json.dumps({**config, "eos_token_id": STOPS}), "utf-8")
    model = LlamaForCausalLM.from_pretrained(folder)
    assert isinstance(model, LlamaForCausalLM), "the class says what it loads"
    model.train(mode=False)
    return model


def _target(folder: Path, model: LlamaForCausalLM, jobs: Sequence[Job]) -> Target:
    models = (Algorithm.EAGLE, Algorithm.EAGLE3, Algorithm.STANDALONE)
    drafts = {own: folder / own.value.lower() for own in models}
    eagle_of(drafts[Algorithm.EAGLE], folder)
    eagle3_of(drafts[Algorithm.EAGLE3], folder)
    first_layers(drafts[Algorithm.STANDALONE], folder)
    return Target(folder=folder, drafts=drafts, jobs=jobs, tokens=tokens_of(model, jobs))


def _jobs(num_jobs: int) -> Sequence[Job]:
    """Draw prompts of every length, one token among them, and outputs of every length."""
    draw = random.Random(4)  # noqa: S311 - a table of inputs, not a secret
    return [
        Job(
            prompt=tuple(
                draw.randrange(VOCAB_SIZE) for _ in range(1 + 37 * place % MAX_PROMPT_LEN)
            ),
            max_new_tokens=1 + 7 * place % MAX_NEW_TOKENS,
        )
        for place in range(num_jobs)
    ]


def _echoes(model: LlamaForCausalLM, jobs: Sequence[Job]) -> Sequence[Job]:
    """Make prompts of what a target says behind a token, and then that token once more."""
    starts = torch.tensor([job.prompt[:1] for job in jobs])
    generated = model.generate(  # type: ignore[misc] # transformers mistypes its own self
        starts,
        attention_mask=torch.ones_like(starts),
        max_new_tokens=MAX_PROMPT_LEN,
        min_new_tokens=MAX_PROMPT_LEN,
        do_sample=False,
        pad_token_id=0,
    )
    assert isinstance(generated, Tensor), "nothing but tokens was asked for"
    said: list[list[int]] = generated.tolist()
    return [
        Job(prompt=(*own[: len(job.prompt) - 1], own[0]), max_new_tokens=job.max_new_tokens)
        for own, job in zip(said, jobs, strict=True)
    ]
