"""Small models with random weights, for demonstrations, benchmarks and tests."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import torch
from safetensors.torch import save_file
from torch import Tensor

from backend_caps.runtime.model.config import LlamaConfig
from backend_caps.runtime.model.llama import LlamaModel

_GAINS: Mapping[str, float] = MappingProxyType(
    {
        # What a head attends to depends on the tokens.
        "q_proj.weight": 2.0,
        "k_proj.weight": 2.0,
        # A layer adds more than the embedding was, or a tied LM head would repeat the last token.
        "o_proj.weight": 4.0,
        "down_proj.weight": 4.0,
    }
)
"""How much larger some weights are than those that keep a vector's length."""
_ADDING = ("o_proj.weight", "down_proj.weight")
"""What a layer adds to a token is made by these."""
SCORE_SCALE = 4.0
"""The logits' standard deviation: the likeliest token stands out against rounding."""


def random_llama(  # noqa: PLR0913 - sizes, each known by its name
    folder: str | Path,
    *,
    seed: int = 0,
    vocab_size: int = 512,
    hidden_size: int = 64,
    num_layers: int = 2,
    num_heads: int = 4,
    num_kv_heads: int = 2,
    max_position_embeddings: int = 2048,
    dtype: torch.dtype = torch.float32,
    tie: bool = False,
    later_gain: float | None = None,
) -> LlamaConfig:
    """Write a model with random weights as a Hugging Face folder, and return its config.

    The weights are such that greedy outputs vary with the prompt, and the likeliest token stands
    out. The same arguments give the same weights.

    Args:
        folder: made where it is not there; its config.json and model.safetensors are overwritten.
        seed: of the weights.
        vocab_size: tokens that it knows.
        hidden_size: features of a token, a multiple of twice `num_heads`.
        num_layers: decoder layers.
        num_heads: query heads.
        num_kv_heads: key and value heads; they divide `num_heads`.
        max_position_embeddings: its longest context.
        dtype: of the weights, float32 or bfloat16.
        tie: the LM head's weight is the embedding's.
        later_gain: makes a target that is easy to draft for: scales what the layers after the first
            add, and gives all embeddings one length, as an EAGLE head has no norm for them. The
            less it is, the oftener a draft made of the first layer is right.

    Raises:
        ModelConfigError: a size is none that a model can have.
        ExceptionGroup: several are.
    """
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    document = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocab_size,
        "hidden_size": hidden_size,
        "intermediate_size": 4 * hidden_size,
        "num_hidden_layers": num_layers,
        "num_attention_heads": num_heads,
        "num_key_value_heads": num_kv_heads,
        "max_position_embeddings": max_position_embeddings,
        "rope_theta": 10000.0,
        "tie_word_embeddings": tie,
        "torch_dtype": str(dtype).removeprefix("torch."),
    }
    (path / "config.json").write_text(json.dumps(document, indent=2) + "\n", "utf-8")
    config = LlamaConfig.from_folder(path)
    weights = _random_weights(config, seed, dtype, later_gain)
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    return config


def _random_weights(
    config: LlamaConfig, seed: int, dtype: torch.dtype, later_gain: float | None
) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    hollow = LlamaModel(config, torch.device("meta"), dtype, num_positions=1)
    weights = {
        name: random_weight(name, weight.shape, generator)
        for name, weight in hollow.named_weights()
    }
    if later_gain is not None:
        _ease_drafting(weights, later_gain)
    return {name: weight.to(dtype) for name, weight in weights.items()}


def _ease_drafting(weights: Mapping[str, Tensor], later_gain: float) -> None:
    for name, weight in weights.items():
        if name.endswith(_ADDING) and not name.startswith("model.layers.0."):
            weight.mul_(later_gain)
    embedding = weights["model.embed_tokens.weight"]
    embedding.div_(embedding.norm(dim=-1, keepdim=True))


def random_weight(name: str, shape: torch.Size, generator: torch.Generator) -> Tensor:
    """Draw the weight of that name, in float32."""
    if name == "model.norm.weight":
        return torch.full(shape, SCORE_SCALE)
    if len(shape) == 1:
        return torch.ones(shape)
    gain = next((gain for end, gain in _GAINS.items() if name.endswith(end)), 1.0)
    return torch.randn(shape, generator=generator) * (gain / math.sqrt(shape[-1]))
