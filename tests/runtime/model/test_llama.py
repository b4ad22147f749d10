from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from backend_caps.runtime.model import load_llama
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
            {"rope_parameters": {"rope_type": "default", "rope_theta": 100.0}}, id="another theta"
        ),
        pytest.param({"max_shard_size": "10KB"}, id="sharded"),
    ],
)
def test_logits_equal_those_of_transformers(tmp_path: Path, changes: dict[str, object]) -> None:
    """Whatever the config asks for, the logits of a batch of prompts are those of transformers."""
    oracle = save(tmp_path, **changes)  # type: ignore[arg-type] # a table of any of its arguments

    model = load_llama(tmp_path, "cpu")
    logits = run(model, Cache(model), PROMPTS, (0, 0, 0))

    torch.testing.assert_close(logits, _logits(oracle), atol=1e-4, rtol=0)
