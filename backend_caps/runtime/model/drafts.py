"""Small draft models for demonstrations, benchmarks and tests.

Shapes: T tokens, Hq query heads, Hk key and value heads, D their size.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

import torch
from pydantic import JsonValue
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from backend_caps.runtime.layer import AttentionLayer
from backend_caps.runtime.model.config import LlamaConfig
from backend_caps.runtime.model.draft_errors import DraftLayersError
from backend_caps.runtime.model.eagle import EagleConfig, EagleHead
from backend_caps.runtime.model.linear import Embedding, LMHead
from backend_caps.runtime.model.llama import LlamaModel
from backend_caps.runtime.model.loading import load_llama
from backend_caps.runtime.model.random_llama import SCORE_SCALE, random_weight

_META, _CPU = torch.device("meta"), torch.device("cpu")
_MEASURED = 256
"""Tokens whose states say how long a state is."""


def random_eagle(
    folder: str | Path,
    target: LlamaConfig,
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> EagleConfig:
    """Write an EAGLE head with random weights for a target, and return its config.

    Its drafts depend on tokens and states, and are hardly ever right. The same arguments give the
    same weights.

    Args:
        folder: made where it is not there; its config.json and model.safetensors are overwritten.
        target: the shape of the target, as `random_llama` returns it.
        seed: of the weights.
        dtype: of the weights, float32 or bfloat16.
    """
    generator = torch.Generator().manual_seed(seed)
    config = _with_layers(target, 1)
    weights = {
        name: random_weight(name, weight.shape, generator)
        for name, weight in _hollow_head(config).named_weights()
    }
    # A random model's embeddings have length 1, and its states SCORE_SCALE * sqrt(H).
    tokens, states = weights["fc.weight"].chunk(2, dim=1)
    gains = (math.sqrt(target.hidden_size), 1 / SCORE_SCALE)
    weights["fc.weight"] = torch.cat([tokens * gains[0], states * gains[1]], dim=1)
    return _write_head(folder, config, weights, dtype)


def first_layers(
    folder: str | Path, target_folder: str | Path, *, num_layers: int = 1
) -> LlamaConfig:
    """Write a model of a target's first layers, its norm and LM head; return its config.

    It is the oftener right the less the other layers add.

    Args:
        folder: made where it is not there; its config.json and model.safetensors are overwritten.
        target_folder: as `load_llama` takes it.
        num_layers: of the target's.

    Raises:
        DraftLayersError: the target has fewer layers, or none were asked for.
        BackendCapsError: the target cannot be loaded; see `load_llama`.
    """
    target = LlamaConfig.from_folder(target_folder)
    if not 1 <= num_layers <= target.num_hidden_layers:
        raise DraftLayersError(
            num_layers=num_layers,
            target_folder=str(target_folder),
            available=target.num_hidden_layers,
        )
    config = _with_layers(target, num_layers)
    model = load_llama(target_folder, _CPU, num_positions=1)
    hollow = LlamaModel(config, _META, model.dtype, num_positions=1)
    weights = dict(model.named_weights())
    kept = {name: weights[name] for name, _ in hollow.named_weights()}
    _write(folder, config, {"architectures": ["LlamaForCausalLM"]}, kept)
    return LlamaConfig.from_folder(folder)


def eagle_of(folder: str | Path, target_folder: str | Path) -> EagleConfig:
    """Write an EAGLE head made of a target's first layer, and return its config.

    It is the oftener right the less the other layers add. It reads tokens alone, by weights: those
    of the states are 0.

    Args:
        folder: made where it is not there; its config.json and model.safetensors are overwritten.
        target_folder: as `load_llama` takes it.

    Raises:
        BackendCapsError: the target cannot be loaded; see `load_llama`.
    """
    target = load_llama(target_folder, _CPU, num_positions=_MEASURED)
    config = _with_layers(target.config, 1)
    return _write_head(folder, config, _weights_of_first_layer(target), target.dtype)


def _weights_of_first_layer(target: LlamaModel) -> dict[str, Tensor]:
    """Make a head's weights of the target's, so that it needs neither of the norms it lacks."""
    weights = {
        name.removeprefix("model."): weight.to(torch.float32)
        for name, weight in target.named_weights()
        if name.startswith("model.layers.0.")
    }
    scale = _head_scale(target)
    norm = weights.pop("layers.0.input_layernorm.weight") * _input_scale(target) / scale
    tokens = torch.eye(target.config.hidden_size) * scale
    states = torch.zeros_like(tokens)
    return {
        "fc.weight": torch.cat([tokens, states], dim=1),
        **{name: _adapted(name, weight, norm, scale) for name, weight in weights.items()},
    }


def _adapted(name: str, weight: Tensor, norm: Tensor, scale: Tensor) -> Tensor:
    """Make a weight of the layer fit tokens that are `scale` times as long, and not normalised."""
    if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight")):
        return weight * norm
    return weight * scale if ".o_proj." in name or ".down_proj." in name else weight


def _input_scale(target: LlamaModel) -> Tensor:
    """Return what the norm before the first layer scales tokens by: the mean, where they differ."""
    squares = target.embedding.weight.to(torch.float32).square().mean(dim=-1)
    return (squares + target.config.rms_norm_eps).rsqrt().mean()


def _head_scale(target: LlamaModel) -> Tensor:
    """Return what the first layer's states have to be scaled by to do without the last norm."""
    tokens = torch.linspace(0, target.config.vocab_size - 1, _MEASURED).to(torch.int64)
    rotation = target.rotary.look_up(torch.arange(_MEASURED))
    states = target.layers[0](target.embedding(tokens), rotation, _Causal()).to(torch.float32)
    norm = target.norm.weight.to(torch.float32)
    return norm.square().mean().sqrt() / states.square().mean(dim=-1).sqrt().mean()


class _Causal:
    """A context in which each token sees those before it, and itself."""

    def attend(self, layer: AttentionLayer, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (
            each.view(each.shape[0], -1, layer.qk_head_dim).movedim(0, 1) for each in (q, k, v)
        )
        attended = scaled_dot_product_attention(
            q, k, v, is_causal=True, scale=layer.scaling, enable_gqa=True
        )
        return attended.movedim(1, 0).flatten(1)


def _with_layers(config: LlamaConfig, num_layers: int) -> LlamaConfig:
    return config.model_copy(update={"num_hidden_layers": num_layers})


def _hollow_head(config: LlamaConfig) -> EagleHead:
    """Make a head that has names and shapes, and takes no memory."""
    embedding = Embedding(config.vocab_size, config.hidden_size, _META, torch.float32)
    lm_head = LMHead(embedding.weight)
    return EagleHead(config, embedding, lm_head, _META, torch.float32, num_positions=1)


def _write_head(
    folder: str | Path, config: LlamaConfig, weights: Mapping[str, Tensor], dtype: torch.dtype
) -> EagleConfig:
    stored = {name: weight.to(dtype) for name, weight in weights.items()}
    _write(folder, config, {"architectures": ["LlamaForCausalLMEagle"], "bias": False}, stored)
    return EagleConfig.from_folder(folder)


def _write(
    folder: str | Path,
    config: LlamaConfig,
    own: Mapping[str, JsonValue],
    weights: Mapping[str, Tensor],
) -> None:
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    dtypes = {str(weight.dtype).removeprefix("torch.") for weight in weights.values()}
    document = {
        **own,
        "model_type": "llama",
        **config.model_dump(mode="json", exclude={"rope", "dtype", "eos_token_ids"}),
        "rope_parameters": config.rope.model_dump(mode="json"),
        "eos_token_id": list(config.eos_token_ids) or None,
        "torch_dtype": ", ".join(dtypes),
    }
    (path / "config.json").write_text(json.dumps(document, indent=2) + "\n", "utf-8")
    # Parts of one tensor are stored apart.
    apart = {name: weight.clone() for name, weight in weights.items()}
    save_file(apart, path / "model.safetensors", metadata={"format": "pt"})
