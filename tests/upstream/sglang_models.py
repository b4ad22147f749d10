"""Tiny random models on disk, as Hugging Face has them: a Llama, two drafts and an EAGLE3 head.

It runs where SGLang is installed, whose transformers write the Llamas.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

VOCAB_SIZE, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INNER = 128, 64, 4, 2, 16, 128
DRAFT_VOCAB_SIZE = 64
_SPREAD = 0.3
"""Of random weights: wide enough that two tokens seldom have nearly the same logit."""
_NOISE = 0.005
"""What is added to the target's weights for a draft that is often right."""


def write_models(folder: Path) -> None:
    """Write `target`, `near` and `far`, which are Llamas, and `eagle3`, the target's head."""
    target = _llama(num_layers=2, seed=0)
    target.save_pretrained(folder / "target")
    _llama(num_layers=1, seed=1).save_pretrained(folder / "far")
    dice = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for weight in target.parameters():
            weight.add_(_NOISE * torch.randn(weight.shape, generator=dice))
    target.save_pretrained(folder / "near")
    _write_eagle3(folder / "eagle3", folder / "target")


def _llama(*, num_layers: int, seed: int) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        architectures=["LlamaForCausalLM"],
        vocab_size=VOCAB_SIZE,
        hidden_size=HIDDEN,
        intermediate_size=INNER,
        num_hidden_layers=num_layers,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        max_position_embeddings=256,
        tie_word_embeddings=False,
        initializer_range=_SPREAD,
    )
    model: LlamaForCausalLM = LlamaForCausalLM(config).float()  # type: ignore[no-untyped-call]
    return model


def _write_eagle3(folder: Path, target: Path) -> None:
    """Write a head in the published layout: three hidden states in, a vocabulary of its own."""
    dice = torch.Generator().manual_seed(3)

    def random(*shape: int) -> Tensor:
        return _SPREAD * torch.randn(shape, generator=dice)

    tokens = torch.randperm(VOCAB_SIZE, generator=dice)[:DRAFT_VOCAB_SIZE].sort().values
    is_drafted = torch.zeros(VOCAB_SIZE, dtype=torch.bool)
    is_drafted[tokens] = True
    projections = {
        "self_attn.q_proj": (HEADS * HEAD_DIM, 2 * HIDDEN),
        "self_attn.k_proj": (KV_HEADS * HEAD_DIM, 2 * HIDDEN),
        "self_attn.v_proj": (KV_HEADS * HEAD_DIM, 2 * HIDDEN),
        "self_attn.o_proj": (HIDDEN, HEADS * HEAD_DIM),
        "mlp.gate_proj": (INNER, HIDDEN),
        "mlp.up_proj": (INNER, HIDDEN),
        "mlp.down_proj": (HIDDEN, INNER),
    }
    norms = ("input_layernorm", "hidden_norm", "post_attention_layernorm")
    folder.mkdir()
    weights = {
        "fc.weight": random(HIDDEN, 3 * HIDDEN),
        **{f"midlayer.{name}.weight": random(*shape) for name, shape in projections.items()},
        **{f"midlayer.{name}.weight": torch.ones(HIDDEN) for name in norms},
        "norm.weight": torch.ones(HIDDEN),
        "lm_head.weight": random(DRAFT_VOCAB_SIZE, HIDDEN),
        "d2t": tokens - torch.arange(DRAFT_VOCAB_SIZE),
        "t2d": is_drafted,
    }
    save_file(weights, folder / "model.safetensors")
    config = json.loads((target / "config.json").read_text())
    config |= {
        "architectures": ["LlamaForCausalLMEagle3"],
        "num_hidden_layers": 1,
        "draft_vocab_size": DRAFT_VOCAB_SIZE,
    }
    (folder / "config.json").write_text(json.dumps(config))
