"""Small models and drafts with made-up weights, for demonstrations, benchmarks and tests.

Shapes: T tokens, Hq query heads, Hk key and value heads, D their size.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from pydantic import JsonValue
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from backend_caps.runtime.model import layers
from backend_caps.runtime.model.config import LlamaConfig
from backend_caps.runtime.model.draft import EagleConfig, EagleHead
from backend_caps.runtime.model.eagle3 import Eagle3Config
from backend_caps.runtime.model.errors import ModelError
from backend_caps.runtime.model.llama import LlamaModel, load_llama

_HOLLOW = layers.TensorOptions(torch.device("meta"), torch.float32)
_GAINS: Mapping[str, float] = {
    # What a head attends to depends on the tokens.
    "q_proj.weight": 2.0,
    "k_proj.weight": 2.0,
    # A layer adds more than the embedding was, or a tied LM head would repeat the last token.
    "o_proj.weight": 4.0,
    "down_proj.weight": 4.0,
}
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
        ModelError: `model-config`: a size is none that a model can have.
        ExceptionGroup: several are.
    """
    document: dict[str, JsonValue] = {
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
    _write_config(folder, document)
    config = LlamaConfig.from_folder(folder)
    weights = _random_weights(LlamaModel(config, _HOLLOW, num_positions=1), seed)
    if later_gain is not None:
        for name, weight in weights.items():
            if name.endswith(_ADDING) and not name.startswith("model.layers.0."):
                weight.mul_(later_gain)
        embedding = weights["model.embed_tokens.weight"]
        embedding.div_(embedding.norm(dim=-1, keepdim=True))
    _write_weights(folder, weights, dtype)
    return config


def _random_weights(model: layers.Weighted, seed: int) -> dict[str, Tensor]:
    """Draw the weights of a model, in float32."""
    generator = torch.Generator().manual_seed(seed)
    return {name: random_weight(name, w.shape, generator) for name, w in model.named_weights()}


def random_weight(name: str, shape: torch.Size, generator: torch.Generator) -> Tensor:
    """Draw the weight of that name, in float32."""
    if name == "model.norm.weight":
        return torch.full(shape, SCORE_SCALE)
    if len(shape) == 1:
        return torch.ones(shape)
    gain = next((gain for end, gain in _GAINS.items() if name.endswith(end)), 1.0)
    return torch.randn(shape, generator=generator) * (gain / math.sqrt(shape[-1]))


_MEASURED = 256
"""Tokens whose states say how long a state is."""
_SHARPNESS = 4.0
"""Of queries and keys by which a token finds itself: enough for others to get next to nothing."""
_UNKNOWN_OF_FOUR = 3
"""Which of every four tokens a head does not know."""


def random_eagle(
    folder: str | Path, target: LlamaConfig, *, seed: int = 0, dtype: torch.dtype = torch.float32
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
    config = target.model_copy(update={"num_hidden_layers": 1})
    embedding = layers.Embedding(config.vocab_size, config.hidden_size, _HOLLOW)
    head = EagleHead(config, embedding, layers.LMHead(embedding.weight), _HOLLOW, num_positions=1)
    weights = _random_weights(head, seed)
    # A random model's embeddings have length 1, and its states SCORE_SCALE * sqrt(H).
    tokens, states = weights["fc.weight"].chunk(2, dim=1)
    gains = (math.sqrt(target.hidden_size), 1 / SCORE_SCALE)
    weights["fc.weight"] = torch.cat([tokens * gains[0], states * gains[1]], dim=1)
    return _write_head(folder, config, weights, dtype)


def first_layers(folder: str | Path, source: str | Path, *, num_layers: int = 1) -> LlamaConfig:
    """Write a model of a target's first layers, its norm and LM head; return its config.

    It is the oftener right the less the other layers add.

    Args:
        folder: made where it is not there; its config.json and model.safetensors are overwritten.
        source: as `load_llama` takes it.
        num_layers: of the target's.

    Raises:
        ModelError: `draft-layers`: the target has fewer layers, or none were asked for.
        BackendCapsError: the target cannot be loaded; see `load_llama`.
    """
    target = LlamaConfig.from_folder(source)
    if not 1 <= num_layers <= target.num_hidden_layers:
        raise ModelError(
            "draft-layers",
            f"num_layers is {num_layers}; 1 to {target.num_hidden_layers} was expected, as "
            f"{str(source)!r} has {target.num_hidden_layers}. Ask for fewer layers, or for "
            f"one.",
        )
    config = target.model_copy(update={"num_hidden_layers": num_layers})
    model = load_llama(source, "cpu", num_positions=1)
    weights = dict(model.named_weights())
    hollow = LlamaModel(config, _HOLLOW, num_positions=1)
    kept = {name: weights[name] for name, _ in hollow.named_weights()}
    _write_config(folder, _document(config, model.dtype, architectures=["LlamaForCausalLM"]))
    _write_weights(folder, kept, model.dtype)
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
    target = load_llama(target_folder, "cpu", num_positions=_MEASURED)
    config = target.config.model_copy(update={"num_hidden_layers": 1})
    return _write_head(folder, config, _weights_of_first_layer(target), target.dtype)


def eagle3_of(folder: str | Path, target_folder: str | Path) -> Eagle3Config:
    """Write an EAGLE3 head made of a target's first layer, and return its config.

    It is the oftener right the less the other layers add. Its config.json is in the layout of the
    `speculators` package. Of every four tokens it knows three, so `d2t` is no identity. It reads
    tokens alone, by weights: its `hidden_norm` is 0.

    Args:
        folder: made where it is not there; its config.json and model.safetensors are overwritten.
        target_folder: as `load_llama` takes it.

    Raises:
        BackendCapsError: the target cannot be loaded; see `load_llama`.
    """
    target = load_llama(target_folder, "cpu", num_positions=1)
    own, copying = target.config, -(-target.config.hidden_size // target.config.head_dim)
    num_keys = own.num_key_value_heads + copying
    layer = own.model_copy(
        update={
            "num_hidden_layers": 1,
            "num_key_value_heads": num_keys,
            "num_attention_heads": num_keys * (own.num_attention_heads // own.num_key_value_heads),
            "attention_bias": False,
            "mlp_bias": False,
            "tie_word_embeddings": False,
        }
    )
    known = [token for token in range(own.vocab_size) if token % 4 != _UNKNOWN_OF_FOUR]
    document: dict[str, JsonValue] = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "draft_vocab_size": len(known),
        "norm_before_residual": True,
        "eagle_aux_hidden_state_layer_ids": [*_layers_read(own)],
        "transformer_layer_config": _document(layer, target.dtype),
    }
    _write_config(folder, document)
    _write_weights(folder, _weights_of_eagle3(target, layer, known), target.dtype)
    return Eagle3Config.from_folder(folder)


def _layers_read(target: LlamaConfig) -> Sequence[int]:
    """Choose three layers of a target, or as many as it has: a small one lacks the default ones."""
    last = target.num_hidden_layers
    return sorted({0, last // 2, last})


def _weights_of_eagle3(
    target: LlamaModel, layer: LlamaConfig, known: Sequence[int]
) -> dict[str, Tensor]:
    """Make a head's weights of the target's first layer.

    An EAGLE3 head has no residual from its embedding: what a layer adds to it has to come through
    attention. So beside the target's heads there are heads that attend to their own token, by
    queries that equal the keys, and copy its embedding.
    """
    size = target.config.hidden_size
    weights = {
        name.removeprefix("model."): weight.to(torch.float32)
        for name, weight in target.named_weights()
        if name.startswith(("model.layers.0.", "model.norm.")) and "_proj.bias" not in name
    }
    num_aux = len(_layers_read(target.config))
    group = layer.num_attention_heads // layer.num_key_value_heads
    copied = torch.eye(-(-size // layer.head_dim) * layer.head_dim, size)
    by_head = copied.view(-1, layer.head_dim, size)
    repeated = by_head.repeat_interleave(group, dim=0).flatten(0, 1)
    norm = weights["layers.0.input_layernorm.weight"] * _input_scale(target)
    added = {"q_proj": repeated * _SHARPNESS, "k_proj": copied * _SHARPNESS, "v_proj": copied}
    for part, rows in added.items():
        name = f"layers.0.self_attn.{part}.weight"
        own = torch.cat([weights[name], rows])
        weights[name] = torch.cat([own, torch.zeros_like(own)], dim=1)
    name = "layers.0.self_attn.o_proj.weight"
    weights[name] = torch.cat([weights[name], repeated.T / group / norm[:, None]], dim=1)
    ids = torch.tensor(known)
    return {
        **weights,
        "fc.weight": torch.eye(size).repeat(1, num_aux) / num_aux,
        "layers.0.hidden_norm.weight": torch.zeros(size),
        "lm_head.weight": target.lm_head.weight[ids],
        "d2t": ids - torch.arange(len(known)),
        "t2d": torch.zeros(target.config.vocab_size, dtype=torch.bool).index_fill(0, ids, 1),
    }


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
    states = target.layers[0](target.embedding(tokens), rotation, CausalContext()).to(torch.float32)
    norm = target.norm.weight.to(torch.float32)
    return norm.square().mean().sqrt() / states.square().mean(dim=-1).sqrt().mean()


class CausalContext:
    """A context in which each token sees those before it, and itself."""

    def attend(self, layer: layers.AttentionLayer, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend without a cache: [T, Hq * D], [T, Hk * D] and [T, Hk * D] to [T, Hq * D]."""
        q, k, v = (t.view(t.shape[0], -1, layer.qk_head_dim).movedim(0, 1) for t in (q, k, v))
        attended = scaled_dot_product_attention(
            q, k, v, is_causal=True, scale=layer.scaling, enable_gqa=True
        )
        return attended.movedim(1, 0).flatten(1)


def _write_head(
    folder: str | Path, config: LlamaConfig, weights: Mapping[str, Tensor], dtype: torch.dtype
) -> EagleConfig:
    own = _document(config, dtype, architectures=["LlamaForCausalLMEagle"], bias=False)
    _write_config(folder, own)
    _write_weights(folder, weights, dtype)
    return EagleConfig.from_folder(folder)


def _document(config: LlamaConfig, dtype: torch.dtype, **own: JsonValue) -> dict[str, JsonValue]:
    """Write a model's shape as a config.json has it."""
    return {
        **own,
        "model_type": "llama",
        **config.model_dump(mode="json", exclude={"rope", "dtype", "eos_token_ids"}),
        "rope_parameters": config.rope.model_dump(mode="json"),
        "eos_token_id": list(config.eos_token_ids) or None,
        "torch_dtype": str(dtype).removeprefix("torch."),
    }


def _write_config(folder: str | Path, document: Mapping[str, JsonValue]) -> None:
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(document, indent=2) + "\n", "utf-8")


def _write_weights(folder: str | Path, weights: Mapping[str, Tensor], dtype: torch.dtype) -> None:
    """Store weights in a dtype, and tables of tokens as they are."""
    stored = {
        # Parts of one tensor are stored apart.
        name: weight.to(dtype if weight.is_floating_point() else weight.dtype, copy=True)
        for name, weight in weights.items()
    }
    save_file(stored, Path(folder) / "model.safetensors", metadata={"format": "pt"})
