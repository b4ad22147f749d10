"""Hugging Face folders that transformers writes, and its models as the oracle."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from backend_caps.runtime.model.errors import ModelError

SMALL: Mapping[str, object] = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}


def save(
    folder: Path,
    *,
    dtype: torch.dtype = torch.float32,
    max_shard_size: str = "1GB",
    **changes: object,
) -> LlamaForCausalLM:
    """Save a small random Llama, biases and norms random too, and return it."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig.from_dict({**SMALL, **changes}))
    model.train(mode=False)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "norm" in name:
                parameter.uniform_(0.5, 1.5)
    torch.nn.Module.to(model, dtype)
    model.save_pretrained(folder, max_shard_size=max_shard_size)
    return model


def edit(path: Path, change: Callable[[dict[str, object]], object]) -> None:
    """Change a JSON document in place."""
    document = json.loads(path.read_text("utf-8"))
    change(document)
    path.write_text(json.dumps(document), "utf-8")


@contextmanager
def refused(code: str, *words: str, whole: str | None = None) -> Iterator[None]:
    """Require that a block raises a `ModelError` of a code and some words, or a whole text."""
    with pytest.raises(ModelError) as raised:
        yield
    assert raised.value.code == code
    assert whole in {None, str(raised.value)}
    assert [own for own in words if own not in str(raised.value)] == []
