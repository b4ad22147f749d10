"""The shape of a Llama-architecture decoder, read from the documents in its folder."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self, TypeAlias

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    PositiveFloat,
    StrictBool,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from backend_caps.resolution.errors import raise_all
from backend_caps.runtime.model import errors

ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM")
"""What `architectures` calls a model that stands by itself."""

_MODEL_TYPES = ("llama", "mistral")
_ROPE_TYPES = ("default", "llama3")
_MISTRAL_WINDOW = 4096
"""What transformers takes for a Mistral whose config says nothing of its window."""


Difference: TypeAlias = tuple[str, object, str]
"""What no decoder here computes: a key of config.json, its value, and what is computed."""


def _differences(raw: Mapping[str, JsonValue], allowed: Collection[str]) -> Iterator[Difference]:
    names, model_type = raw.get("architectures"), raw.get("model_type")
    known = {*map(str, names)} & {*allowed} if isinstance(names, list) else ()
    if names is not None and not known:
        yield "architectures", names, " or ".join(allowed)
    if model_type not in _MODEL_TYPES:
        yield "model_type", model_type, " or ".join(map(repr, _MODEL_TYPES))
    if (activation := raw.get("hidden_act")) not in (None, "silu"):
        yield "hidden_act", activation, "'silu'"
    if (quantization := raw.get("quantization_config")) is not None:
        yield "quantization_config", quantization, "weights that are not quantized"
    window = raw.get("sliding_window", _MISTRAL_WINDOW)
    if model_type == "mistral" and window is not None:
        yield "sliding_window", window, "attention over the whole context, with null there"
    yield from _rotated_share("", raw)
    for section in ("rope_parameters", "rope_scaling"):
        if isinstance(rope := raw.get(section), dict):
            yield from _rope_differences(section, rope)


def _rope_differences(section: str, rope: Mapping[str, JsonValue]) -> Iterator[Difference]:
    if any(isinstance(value, dict) for value in rope.values()):
        yield section, dict(rope), "one RoPE for all layers"
    rope_type = rope.get("rope_type", rope.get("type", "default"))
    if rope_type not in _ROPE_TYPES:
        yield f"{section}.rope_type", rope_type, " or ".join(map(repr, _ROPE_TYPES))
    yield from _rotated_share(f"{section}.", rope)


def _rotated_share(prefix: str, section: Mapping[str, JsonValue]) -> Iterator[Difference]:
    if (share := section.get("partial_rotary_factor")) not in (None, 1.0):
        yield f"{prefix}partial_rotary_factor", share, "1.0"


MAX_VOCAB_SIZE = 2**22
"""The most tokens that a model may know, many times what one does; sampling counts on it."""

# Far above any model: what a mistaken or hostile number would make is no reason to run out of
# memory before the weights are compared. float32 tells 2**24 positions apart.
_Width = Annotated[int, Field(gt=0, le=2**18)]
_Length = Annotated[int, Field(gt=0, le=2**24)]

_TokenId = Annotated[int, Field(ge=0)]

_PARSED = ConfigDict(frozen=True, extra="ignore", strict=True, allow_inf_nan=False)


class DefaultRope(BaseModel):
    """Turn positions into angles as RoPE was first described."""

    model_config = _PARSED

    rope_type: Literal["default"] = "default"
    """Plain RoPE."""
    rope_theta: PositiveFloat = 10000.0
    """The base of the wavelengths."""


class Llama3Rope(BaseModel):
    """Turn positions into angles as Llama 3.1 does: long wavelengths are stretched."""

    model_config = _PARSED

    rope_type: Literal["llama3"] = "llama3"
    """RoPE by the frequency's band."""
    rope_theta: PositiveFloat = 10000.0
    """The base of the wavelengths."""
    factor: PositiveFloat
    """How far the longest wavelengths are stretched."""
    low_freq_factor: PositiveFloat
    """What turns less often than this in the original context is stretched whole."""
    high_freq_factor: PositiveFloat
    """What turns more often than this in the original context is left alone."""
    original_max_position_embeddings: _Length
    """The context that the model was trained with before."""

    @field_validator("high_freq_factor")
    @classmethod
    def _check_bands(cls, high: float, info: ValidationInfo) -> float:
        low: float = info.data.get("low_freq_factor", 0.0)
        if high <= low:
            raise ValueError(f"more than low_freq_factor {low}")
        return high


def _token_ids(value: object) -> object:
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list) else (value,)


class LlamaConfig(BaseModel):
    """What a Llama-architecture decoder is made of; other keys of its documents are ignored.

    A key that is not there has the value that `transformers` gives it for a Llama.
    """

    model_config = _PARSED

    architectures: ClassVar[tuple[str, ...]] = ARCHITECTURES
    """What a config.json may call a model of this shape."""

    vocab_size: Annotated[int, Field(gt=0, le=MAX_VOCAB_SIZE)]
    """Tokens that the model knows."""
    hidden_size: _Width
    """Features of a token between the layers."""
    intermediate_size: _Width
    """Features of a token inside an MLP."""
    num_hidden_layers: Annotated[int, Field(gt=0, le=2**12)]
    """Decoder layers."""
    num_attention_heads: _Width
    """Query heads."""
    num_key_value_heads: Annotated[
        _Width, Field(default_factory=lambda data: data["num_attention_heads"])
    ]
    """Key and value heads; they divide the query heads."""
    head_dim: Annotated[
        int,
        Field(
            gt=0,
            le=2**18,
            multiple_of=2,
            validate_default=True,
            default_factory=lambda data: data["hidden_size"] // data["num_attention_heads"],
        ),
    ]
    """Features of a head."""
    max_position_embeddings: _Length = 2048
    """Positions that the model was made for."""
    rms_norm_eps: PositiveFloat = 1e-6
    """What keeps a norm from dividing by zero."""
    rope: Annotated[DefaultRope | Llama3Rope, Field(discriminator="rope_type")] = DefaultRope()
    """How positions turn into angles."""
    tie_word_embeddings: StrictBool = False
    """The LM head's weight is the embedding's."""
    attention_bias: StrictBool = False
    """The attention's projections have biases."""
    mlp_bias: StrictBool = False
    """The MLP's projections have biases."""
    dtype: str | None = None
    """What the weights were saved in, by torch's name without `torch.`; None without a key."""
    eos_token_ids: Annotated[tuple[_TokenId, ...], BeforeValidator(_token_ids)] = ()
    """The tokens that end a text, where `generate` of transformers looks for them: in
    generation_config.json, and in config.json only where there is no such file; empty where that
    document names none."""

    @field_validator("num_key_value_heads")
    @classmethod
    def _check_heads(cls, num_heads: int, info: ValidationInfo) -> int:
        num_queries: int = info.data.get("num_attention_heads", num_heads)
        if num_queries % num_heads:
            raise ValueError(f"a divisor of num_attention_heads {num_queries}")
        return num_heads

    @classmethod
    def from_folder(cls, folder: str | Path) -> Self:
        """Read the config.json in a Hugging Face folder, and what ends a text beside it.

        Raises:
            ModelError: the folder has no config.json, or one that is not JSON, that this decoder
                does not compute, or of which a value is none that its key can have.
            ExceptionGroup: there are several faults.
        """
        path = Path(folder) / "config.json"
        raw = cls._flat(str(path), _read(path))
        different = _differences(raw, cls.architectures)
        unsupported = [errors.unsupported_value(str(path), *own) for own in different]
        raise_all(f"config {str(path)!r}", unsupported)
        ends_path, ends = _ends(path, raw)
        try:
            return cls.model_validate({**_normalised(raw), "eos_token_ids": ends})
        except ValidationError as error:
            raise_all(f"config {str(path)!r}", [*_faults(path, ends_path, error)])
            raise

    @classmethod
    def _flat(cls, path: str, raw: Mapping[str, JsonValue]) -> Mapping[str, JsonValue]:
        """Return the document with this class's keys at its top; draft heads may nest them.

        Raises:
            ModelError: the document asks for what this decoder does not compute.
        """
        del path
        return raw


def _read(path: Path) -> Mapping[str, JsonValue]:
    if not path.is_file():
        raise errors.missing_file(path.parent, path.name)
    try:
        raw = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise errors.unreadable_file(path, "JSON in UTF-8", error) from error
    if not isinstance(raw, dict):
        raise errors.unreadable_file(path, "a JSON object", f"it holds {type(raw).__name__}")
    return raw


def _normalised(raw: Mapping[str, JsonValue]) -> Mapping[str, object]:
    """Say in one way what versions of transformers say in several."""
    # A null stands for a key that is left out, in every version.
    config: dict[str, object] = {key: value for key, value in raw.items() if value is not None}
    config["rope"] = _rope(config)
    config["dtype"] = config.get("dtype", config.get("torch_dtype"))
    return config


def _ends(config_path: Path, raw: Mapping[str, JsonValue]) -> tuple[Path, JsonValue]:
    """Return which document says what ends a text, and what it says."""
    path = config_path.with_name("generation_config.json")
    if not path.is_file():
        return config_path, raw.get("eos_token_id")
    # Where it names none, `generate` stops at none: config.json is then not asked.
    return path, _read(path).get("eos_token_id")


def _rope(config: Mapping[str, object]) -> object:
    given = config.get("rope_parameters", config.get("rope_scaling", {}))
    if not isinstance(given, dict):
        return given
    rope = {key: value for key, value in given.items() if value is not None}
    if "rope_theta" in config:
        rope.setdefault("rope_theta", config["rope_theta"])
    rope.setdefault("rope_type", rope.get("type", "default"))
    return rope


def _faults(path: Path, ends_path: Path, error: ValidationError) -> Iterator[errors.ModelError]:
    """Say of each key that pydantic refused what its value is, and what was expected."""
    for each in error.errors(include_url=False):
        if each["type"] == "default_factory_not_called":
            continue
        place, key = path, next(part for part in reversed(each["loc"]) if isinstance(part, str))
        if each["loc"][0] == "eos_token_ids":
            place, key = ends_path, "eos_token_id"
        expected = each["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
        if each["type"] == "missing":
            yield errors.config_value(place, key, None, "a value")
        else:
            yield errors.config_value(place, key, each["input"], expected)
