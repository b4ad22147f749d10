from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from backend_caps.runtime.model.config import ARCHITECTURES, DefaultRope, Llama3Rope, LlamaConfig
from tests.runtime.model.folders import refused

LLAMA: dict[str, object] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
MISTRAL = {"architectures": ["MistralForCausalLM"], "model_type": "mistral"}
STRETCHED = {
    "factor": 8.0,
    "low_freq_factor": 1,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def _read(folder: Path, changes: dict[str, object]) -> LlamaConfig:
    (folder / "config.json").write_text(json.dumps({**LLAMA, **changes}), "utf-8")
    return LlamaConfig.from_folder(folder)


def test_config_has_the_defaults_of_transformers(tmp_path: Path) -> None:
    """What a config.json leaves out is what transformers takes for it."""
    config = _read(tmp_path, {})

    assert config.model_dump(exclude=set(LLAMA)) == {
        "num_key_value_heads": 4,
        "head_dim": 16,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6,
        "rope": {"rope_type": "default", "rope_theta": 10000.0},
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        "dtype": None,
        "eos_token_ids": (),
    }


@pytest.mark.parametrize(
    ("changes", "rope"),
    [
        pytest.param({"rope_theta": 5e5}, DefaultRope(rope_theta=5e5), id="top level"),
        pytest.param(
            {"rope_parameters": {"rope_theta": 5e5}}, DefaultRope(rope_theta=5e5), id="version 5"
        ),
        pytest.param(
            {"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **STRETCHED}},
            Llama3Rope.model_validate({"rope_theta": 5e5, **STRETCHED}),
            id="version 4",
        ),
        pytest.param(
            {"rope_scaling": {"type": "llama3", **STRETCHED}},
            Llama3Rope.model_validate(STRETCHED),
            id="before that",
        ),
        pytest.param({"rope_scaling": None}, DefaultRope(), id="null"),
    ],
)
def test_rope_is_found_wherever_it_stands(
    tmp_path: Path, changes: dict[str, object], rope: DefaultRope | Llama3Rope
) -> None:
    """Every version of transformers writes RoPE in its own way, and means the same."""
    assert _read(tmp_path, changes).rope == rope


@pytest.mark.parametrize(
    ("changes", "field", "value"),
    [
        pytest.param({"eos_token_id": 2}, "eos_token_ids", (2,), id="one end"),
        pytest.param({"eos_token_id": [2, 7]}, "eos_token_ids", (2, 7), id="several ends"),
        pytest.param({"dtype": "bfloat16"}, "dtype", "bfloat16", id="dtype"),
        pytest.param({"torch_dtype": "bfloat16"}, "dtype", "bfloat16", id="dtype of version 4"),
        pytest.param({"head_dim": None}, "head_dim", 16, id="null head_dim"),
        pytest.param({"head_dim": 32}, "head_dim", 32, id="head_dim"),
        pytest.param({"use_cache": "?"}, "vocab_size", 128, id="key that nobody reads"),
        pytest.param({**MISTRAL, "sliding_window": None}, "vocab_size", 128, id="mistral"),
    ],
)
def test_value_is_read(
    tmp_path: Path, changes: dict[str, object], field: str, value: object
) -> None:
    """A value is read in each of its spellings, and a key that means nothing here is passed."""
    assert _read(tmp_path, changes).model_dump()[field] == value


HALF, ROPE = "partial_rotary_factor", "rope_parameters"
WHOLE_CONTEXT = "attention over the whole context, with null there"
KINDS_OF_LAYERS: dict[str, object] = {"full_attention": {}}


@pytest.mark.parametrize(
    ("changes", "key", "value", "supported"),
    [
        ({"architectures": ["GPT2"]}, "architectures", ["GPT2"], " or ".join(ARCHITECTURES)),
        ({"architectures": None, "model_type": None}, "model_type", None, "'llama' or 'mistral'"),
        ({"hidden_act": "gelu"}, "hidden_act", "gelu", "'silu'"),
        ({"hidden_act": ["silu"]}, "hidden_act", ["silu"], "'silu'"),
        ({"quantization_config": {}}, "quantization_config", {}, "weights that are not quantized"),
        ({"rope_scaling": {"type": "a"}}, "rope_scaling.rope_type", "a", "'default' or 'llama3'"),
        ({ROPE: {HALF: 0.5}}, f"{ROPE}.{HALF}", 0.5, "1.0"),
        ({HALF: 0.5}, HALF, 0.5, "1.0"),
        ({ROPE: KINDS_OF_LAYERS}, ROPE, KINDS_OF_LAYERS, "one RoPE for all layers"),
        ({**MISTRAL, "sliding_window": 128}, "sliding_window", 128, WHOLE_CONTEXT),
        (MISTRAL, "sliding_window", 4096, WHOLE_CONTEXT),
    ],
)
def test_model_that_is_not_computed_is_refused(
    tmp_path: Path, changes: dict[str, object], key: str, value: object, supported: str
) -> None:
    """What this decoder does not compute is named, with its value and with what it does."""
    whole = (
        f"{key} is {value!r} in {str(tmp_path / 'config.json')!r}; this decoder computes "
        f"{supported}. Name the folder of such a model."
    )
    with refused("unsupported-model", whole=whole):
        _read(tmp_path, changes)


def _llama3(**changes: object) -> dict[str, object]:
    return {"rope_scaling": {"rope_type": "llama3", **STRETCHED, **changes}}


HEADS, CONTEXT = "num_key_value_heads", "max_position_embeddings"


@pytest.mark.parametrize(
    ("changes", "key", "value", "expected"),
    [
        ({"vocab_size": None}, "vocab_size", None, "a value"),
        ({"vocab_size": "8"}, "vocab_size", "8", "a valid integer"),
        ({"vocab_size": True}, "vocab_size", True, "a valid integer"),
        ({"vocab_size": 2**23}, "vocab_size", 2**23, "less than or equal to 4194304"),
        ({"hidden_size": -4}, "hidden_size", -4, "greater than 0"),
        ({"hidden_size": 60}, "head_dim", 15, "a multiple of 2"),
        ({"head_dim": 15}, "head_dim", 15, "a multiple of 2"),
        ({"eos_token_id": "2"}, "eos_token_id", "2", "a valid integer"),
        ({HEADS: 3}, HEADS, 3, "a divisor of num_attention_heads 4"),
        ({CONTEXT: 10**12}, CONTEXT, 10**12, "less than or equal to 16777216"),
        (_llama3(factor=None), "factor", None, "a value"),
        (_llama3(high_freq_factor=1.0), "high_freq_factor", 1.0, "more than low_freq_factor 1.0"),
        ({"rope_scaling": 8.0}, "rope", 8.0, "a valid dictionary or object to extract fields from"),
        ({"rope_theta": math.inf}, "rope_theta", math.inf, "a finite number"),
    ],
)
def test_value_that_a_key_cannot_have_is_refused(
    tmp_path: Path, changes: dict[str, object], key: str, value: object, expected: str
) -> None:
    """A key with a value that it cannot have is named, with what was expected."""
    whole = (
        f"{key} is {value!r} in {str(tmp_path / 'config.json')!r}; {expected} was expected. "
        f"Correct it there, or download the model anew."
    )
    with refused("model-config", whole=whole):
        _read(tmp_path, changes)


def test_faults_of_one_config_come_together(tmp_path: Path) -> None:
    """Everything that this decoder does not compute is reported at once."""
    with pytest.raises(ExceptionGroup) as raised:
        _read(tmp_path, {"hidden_act": "gelu", "quantization_config": {}, "model_type": "gpt2"})

    keys = [str(fault).split()[0] for fault in raised.value.exceptions]
    assert keys == ["model_type", "hidden_act", "quantization_config"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        pytest.param(b"{", "Expecting property name", id="cut off"),
        pytest.param(b"[]", "it holds list", id="a list"),
        pytest.param(b"\xff\xfe", "'utf-8' codec", id="not UTF-8"),
        pytest.param(b"[" * 100_000, "recursion", id="nested without end"),
    ],
)
def test_file_that_is_no_json_object_is_refused(
    tmp_path: Path, content: bytes, reason: str
) -> None:
    """A config.json that cannot be read is named, with the reader's reason."""
    (tmp_path / "config.json").write_bytes(content)

    with refused("model-file-unreadable", reason):
        LlamaConfig.from_folder(tmp_path)


def test_folder_without_config_is_refused(tmp_path: Path) -> None:
    """A folder that has no config.json is refused, and what it has is listed."""
    (tmp_path / "pytorch_model.bin").touch()

    whole = (
        f"config.json was expected in {str(tmp_path)!r}, which has pytorch_model.bin. "
        f"Name a folder that save_pretrained of transformers wrote."
    )
    with refused("model-file-missing", whole=whole):
        LlamaConfig.from_folder(tmp_path)


def test_path_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    """A folder that is not there is distinguished from one that is empty."""
    with refused("model-file-missing", "which is no folder"):
        LlamaConfig.from_folder(tmp_path / "nowhere")
