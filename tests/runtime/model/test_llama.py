from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from backend_caps.runtime.model.llama import LlamaModel, load_llama
from backend_caps.runtime.model.random_models import random_llama
from tests.runtime.model.folders import LLAMA3_ROPE, save
from tests.runtime.model.reference import Cache, run

PROMPTS = ([3, 14, 15, 92, 65, 35, 89, 79, 32, 38], [46], [26, 43, 38, 32, 79, 50] * 6)


def _logits(oracle: LlamaForCausalLM) -> Tensor:
    """Ask transformers for the logits of each prompt's tokens, each prompt by itself."""
    with torch.no_grad():
        return torch.cat([oracle(torch.tensor([own])).logits[0] for own in PROMPTS]).float()


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="grouped queries"),
        pytest.param({"num_key_value_heads": 4}, id="a key head for each query head"),
        pytest.param({"num_key_value_heads": 1}, id="one key head"),
        pytest.param({"tie_word_embeddings": True}, id="tied embeddings"),
        pytest.param({"attention_bias": True, "mlp_bias": True}, id="biases"),
        pytest.param({"head_dim": 16}, id="heads wider than the hidden state"),
        pytest.param({"rms_norm_eps": 0.1}, id="another epsilon"),
        pytest.param({"rope_parameters": LLAMA3_ROPE}, id="rope of llama3"),
        pytest.param(
            {"rope_parameters": {**LLAMA3_ROPE, "original_max_position_embeddings": 4096}},
            id="rope of llama3 in a long context",
        ),
        pytest.param(
            {"rope_parameters": {"rope_type": "default", "rope_theta": 100.0}}, id="another theta"
        ),
        pytest.param({"max_shard_size": "10KB"}, id="sharded"),
    ],
)
def test_logits_equal_those_of_transformers(
    tmp_path: Path, device: torch.device, changes: dict[str, object]
) -> None:
    """Whatever the config asks for, the logits of a batch of prompts are those of transformers."""
    oracle = save(tmp_path, **changes)  # type: ignore[arg-type] # a table of any of its arguments

    model = load_llama(tmp_path, device)
    logits = run(model, Cache(model), PROMPTS, (0, 0, 0))

    torch.testing.assert_close(logits.cpu(), _logits(oracle), atol=1e-4, rtol=0)


def test_decode_continues_what_prefill_began(tmp_path: Path) -> None:
    """Prompts that come in two stretches, then token by token, have the logits of the whole."""
    oracle = save(tmp_path)
    model = load_llama(tmp_path, "cpu")
    cache = Cache(model)

    parts = [run(model, cache, [PROMPTS[0][:5]], (0,)), run(model, cache, [PROMPTS[0][5:7]], (5,))]
    parts += [run(model, cache, [PROMPTS[0][i : i + 1]], (i,)) for i in range(7, 10)]

    torch.testing.assert_close(torch.cat(parts), _logits(oracle)[:10], atol=1e-4, rtol=0)


def test_bfloat16_is_as_exact_as_that_of_transformers(tmp_path: Path) -> None:
    """In bfloat16 the error against float32 is at most twice that of transformers."""
    oracle = save(tmp_path, dtype=torch.bfloat16)
    rounded = _logits(oracle)
    exact = _logits(torch.nn.Module.to(oracle, torch.float32))

    model = load_llama(tmp_path, "cpu")
    logits = run(model, Cache(model), PROMPTS, (0, 0, 0))

    assert model.dtype is torch.bfloat16
    assert (logits - exact).norm() <= 2 * (rounded - exact).norm()


@pytest.mark.parametrize(
    ("changes", "numbers"),
    [
        pytest.param({}, 2, id="a head of its own"),
        pytest.param({"tie_word_embeddings": True}, 1, id="tied"),
    ],
)
def test_lm_head_shares_memory_where_it_is_tied(
    tmp_path: Path, changes: dict[str, object], numbers: int
) -> None:
    """A tied LM head is the embedding, and takes no memory."""
    save(tmp_path, **changes)  # type: ignore[arg-type] # a table of any of its arguments

    model = load_llama(tmp_path, "cpu")

    assert len({model.embedding.weight.data_ptr(), model.lm_head.weight.data_ptr()}) == numbers


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
