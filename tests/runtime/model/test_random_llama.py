from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from backend_caps.runtime.model.llama import LlamaModel, load_llama
from backend_caps.runtime.model.random_models import random_llama
from tests.runtime.model.reference import Cache, run

PROMPT = [5, 6, 7]


def _greedy(model: LlamaModel, num_tokens: int) -> tuple[list[int], Tensor]:
    """Continue the prompt, and return the tokens and the scores that each was chosen by."""
    cache, tokens, scores = Cache(model), [], []
    fed, start = PROMPT, 0
    for _ in range(num_tokens):
        scores.append(run(model, cache, [fed], (start,))[-1])
        tokens.append(int(scores[-1].argmax()))
        start, fed = start + len(fed), tokens[-1:]
    return tokens, torch.stack(scores)


@pytest.mark.parametrize("tie", [False, True], ids=["untied", "tied"])
def test_random_llama_says_what_it_says_in_transformers(tmp_path: Path, *, tie: bool) -> None:
    """Transformers goes on with the same tokens, half of which differ: a wrong one is seen."""
    random_llama(tmp_path, tie=tie)
    oracle = LlamaForCausalLM.from_pretrained(tmp_path)
    prompt = torch.tensor([PROMPT])
    # transformers' own annotation of `self` does not fit its models
    expected = oracle.generate(prompt, max_new_tokens=60, do_sample=False)  # type: ignore[misc]

    tokens, scores = _greedy(load_llama(tmp_path, "cpu"), 60)

    first, second = scores.topk(2).values.unbind(1)
    assert tokens == expected[0, len(PROMPT) :].tolist()
    assert len(set(tokens)) >= 30
    # No two scores are so close that rounding would choose between them.
    assert (first - second).min() > 1e-3


def test_random_llama_is_a_function_of_its_arguments(tmp_path: Path) -> None:
    """The same arguments write the same bytes, and another seed others."""
    for name, seed in (("one", 3), ("same", 3), ("other", 4)):
        random_llama(tmp_path / name, seed=seed)

    one, same, other = (
        (tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "same", "other")
    )
    assert one == same
    assert one != other
