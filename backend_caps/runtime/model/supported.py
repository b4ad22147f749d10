"""What a config.json may ask for that this decoder does not compute."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from pydantic import JsonValue

from backend_caps.runtime.model.errors import UnsupportedModelError

ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM")
"""What `architectures` calls a model that stands by itself."""

_MODEL_TYPES = ("llama", "mistral")
_ROPE_TYPES = ("default", "llama3")
_MISTRAL_WINDOW = 4096
"""What transformers takes for a Mistral whose config says nothing of its window."""


def unsupported(
    path: str, raw: Mapping[str, JsonValue], architectures: Collection[str]
) -> Iterator[UnsupportedModelError]:
    """List what of a config.json this decoder does not compute."""
    for key, value, supported in _differences(raw, architectures):
        yield UnsupportedModelError(path=path, key=key, value=value, supported=supported)


def _differences(
    raw: Mapping[str, JsonValue], architectures: Collection[str]
) -> Iterator[tuple[str, object, str]]:
    yield from _architecture(raw, architectures)
    activation = raw.get("hidden_act")
    if activation not in (None, "silu"):
        yield "hidden_act", activation, "'silu'"
    if raw.get("quantization_config") is not None:
        yield "quantization_config", raw["quantization_config"], "weights that are not quantized"
    if raw.get("model_type") == "mistral":
        window = raw.get("sliding_window", _MISTRAL_WINDOW)
        if window is not None:
            yield "sliding_window", window, "attention over the whole context, with null there"
    yield from _rope(raw)


def _architecture(
    raw: Mapping[str, JsonValue], architectures: Collection[str]
) -> Iterator[tuple[str, object, str]]:
    names, model_type = raw.get("architectures"), raw.get("model_type")
    if names is not None and not (
        isinstance(names, list) and {*architectures} & {*map(str, names)}
    ):
        yield "architectures", names, " or ".join(architectures)
    if model_type not in _MODEL_TYPES:
        yield "model_type", model_type, " or ".join(map(repr, _MODEL_TYPES))


def _rope(raw: Mapping[str, JsonValue]) -> Iterator[tuple[str, object, str]]:
    yield from _rotated_share("partial_rotary_factor", raw.get("partial_rotary_factor"))
    for section in ("rope_parameters", "rope_scaling"):
        rope = raw.get(section)
        if not isinstance(rope, dict):
            continue
        if any(isinstance(value, dict) for value in rope.values()):
            yield section, rope, "one RoPE for all layers"
        rope_type = rope.get("rope_type", rope.get("type", "default"))
        if rope_type not in _ROPE_TYPES:
            yield f"{section}.rope_type", rope_type, " or ".join(map(repr, _ROPE_TYPES))
        share = rope.get("partial_rotary_factor")
        yield from _rotated_share(f"{section}.partial_rotary_factor", share)


def _rotated_share(key: str, share: JsonValue) -> Iterator[tuple[str, object, str]]:
    if share not in (None, 1.0):
        yield key, share, "1.0"
