"""Random EAGLE3 heads in the layout of their authors and of SGLang."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from backend_caps.runtime.model.config import LlamaConfig
from backend_caps.runtime.model.eagle3 import Eagle3Config, Eagle3Head
from backend_caps.runtime.model.layers import TensorOptions
from backend_caps.runtime.model.random_models import random_weight


def random_eagle3(folder: Path, target: LlamaConfig, **keys: object) -> Eagle3Config:
    """Write a head with random weights, which is hardly ever right; it knows every second token.

    Args:
        folder: is made.
        target: the target's shape.
        keys: of config.json, beside those of the layer's shape.
    """
    folder.mkdir(parents=True)
    document = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "vocab_size": target.vocab_size,
        "draft_vocab_size": target.vocab_size // 2,
        "hidden_size": target.hidden_size,
        "intermediate_size": 2 * target.hidden_size,
        "num_hidden_layers": 1,
        "num_attention_heads": target.num_attention_heads,
        "num_key_value_heads": target.num_key_value_heads,
        **keys,
    }
    (folder / "config.json").write_text(json.dumps(document), "utf-8")
    config = Eagle3Config.from_folder(folder)
    options = TensorOptions(torch.device("meta"), torch.float32)
    hollow = Eagle3Head(config, options, num_positions=1)
    generator = torch.Generator().manual_seed(0)
    weights = {
        name.replace("layers.0.", "midlayer."): random_weight(name, weight.shape, generator)
        for name, weight in hollow.named_weights()
    }
    if "d2t" in weights:
        ids = torch.arange(1, target.vocab_size, 2)[: config.draft_vocab_size]
        weights["d2t"] = ids - torch.arange(len(ids))
        weights["t2d"] = torch.zeros(target.vocab_size, dtype=torch.bool).index_fill(0, ids, 1)
    save_file(weights, folder / "model.safetensors")
    return config
