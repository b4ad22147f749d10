from __future__ import annotations

import json
from pathlib import Path

import pytest

from backend_caps.runtime.model.config import DefaultRope, Llama3Rope, LlamaConfig
from backend_caps.runtime.model.errors import ModelError

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
    config = _read(tmp_path, changes)

    assert config.rope == rope


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
    config = _read(tmp_path, changes)

    assert config.model_dump()[field] == value


@pytest.mark.parametrize(
    ("changes", "key", "value", "supported"),
    [
        pytest.param(
            {"architectures": ["GPT2LMHeadModel"]},
            "architectures",
            ["GPT2LMHeadModel"],
            "LlamaForCausalLM or MistralForCausalLM",
            id="architecture",
        ),
        pytest.param(
            {"architectures": None, "model_type": None},
            "model_type",
            None,
            "'llama' or 'mistral'",
            id="neither architecture nor type",
        ),
        pytest.param({"hidden_act": "gelu"}, "hidden_act", "gelu", "'silu'", id="activation"),
        pytest.param({"hidden_act": ["silu"]}, "hidden_act", ["silu"], "'silu'", id="no word"),
        pytest.param(
            {"quantization_config": {"bits": 4}},
            "quantization_config",
            {"bits": 4},
            "weights that are not quantized",
            id="quantized",
        ),
        pytest.param(
            {"rope_scaling": {"type": "yarn"}},
            "rope_scaling.rope_type",
            "yarn",
            "'default' or 'llama3'",
            id="rope type",
        ),
        pytest.param(
            {"rope_parameters": {"partial_rotary_factor": 0.5}},
            "rope_parameters.partial_rotary_factor",
            0.5,
            "1.0",
            id="half of each head",
        ),
        pytest.param(
            {"partial_rotary_factor": 0.5},
            "partial_rotary_factor",
            0.5,
            "1.0",
            id="half of each head, as version 4 says it",
        ),
        pytest.param(
            {"rope_parameters": {"full_attention": {}}},
            "rope_parameters",
            {"full_attention": {}},
            "one RoPE for all layers",
            id="kinds of layers",
        ),
        pytest.param(
            {**MISTRAL, "sliding_window": 128},
            "sliding_window",
            128,
            "attention over the whole context, with null there",
            id="window",
        ),
        pytest.param(
            MISTRAL,
            "sliding_window",
            4096,
            "attention over the whole context, with null there",
            id="window that transformers assumes",
        ),
    ],
)
def test_model_that_is_not_computed_is_refused(
    tmp_path: Path, changes: dict[str, object], key: str, value: object, supported: str
) -> None:
    """What this decoder does not compute is named, with its value and with what it does."""
    with pytest.raises(ModelError) as raised:
        _read(tmp_path, changes)

    path = str(tmp_path / "config.json")
    assert raised.value.code == "unsupported-model"
    assert str(raised.value) == (
        f"{key} is {value!r} in {path!r}; this decoder computes {supported}. "
        f"Name the folder of such a model."
    )


@pytest.mark.parametrize(
    ("changes", "key", "value", "expected"),
    [
        pytest.param({"vocab_size": None}, "vocab_size", None, "a value", id="missing"),
        pytest.param({"hidden_size": -4}, "hidden_size", -4, "greater than 0", id="negative size"),
        pytest.param({"hidden_size": 60}, "head_dim", 15, "a multiple of 2", id="odd by itself"),
        pytest.param({"vocab_size": "8"}, "vocab_size", "8", "a valid integer", id="text"),
        pytest.param(
            {"vocab_size": 2**22 + 1},
            "vocab_size",
            2**22 + 1,
            "less than or equal to 4194304",
            id="more tokens than can be weighed",
        ),
        pytest.param({"eos_token_id": "2"}, "eos_token_id", "2", "a valid integer", id="no token"),
        pytest.param({"vocab_size": True}, "vocab_size", True, "a valid integer", id="bool"),
        pytest.param(
            {"num_key_value_heads": 3},
            "num_key_value_heads",
            3,
            "a divisor of num_attention_heads 4",
            id="heads that do not divide",
        ),
        pytest.param({"head_dim": 15}, "head_dim", 15, "a multiple of 2", id="odd heads"),
        pytest.param(
            {"max_position_embeddings": 10**12},
            "max_position_embeddings",
            10**12,
            "less than or equal to 16777216",
            id="too many positions",
        ),
        pytest.param(
            {"rope_scaling": {"rope_type": "llama3", **STRETCHED, "factor": None}},
            "factor",
            None,
            "a value",
            id="no factor",
        ),
        pytest.param(
            {"rope_scaling": {"rope_type": "llama3", **STRETCHED, "high_freq_factor": 1.0}},
            "high_freq_factor",
            1.0,
            "more than low_freq_factor 1.0",
            id="crossed bands",
        ),
        pytest.param(
            {"rope_scaling": 8.0},
            "rope",
            8.0,
            "a valid dictionary or object to extract fields from",
            id="no rope",
        ),
        pytest.param(
            {"rope_theta": float("inf")}, "rope_theta", float("inf"), "a finite number", id="inf"
        ),
    ],
)
def test_value_that_a_key_cannot_have_is_refused(
    tmp_path: Path, changes: dict[str, object], key: str, value: object, expected: str
) -> None:
    """A key with a value that it cannot have is named, with what was expected."""
    with pytest.raises(ModelError) as raised:
        _read(tmp_path, changes)

    path = str(tmp_path / "config.json")
    assert raised.value.code == "model-config"
    assert str(raised.value) == (
        f"{key} is {value!r} in {path!r}; {expected} was expected. "
        f"Correct it there, or download the model anew."
    )


def test_faults_of_one_config_come_together(tmp_path: Path) -> None:
    """Everything that this decoder does not compute is told at once."""
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

    with pytest.raises(ModelError) as raised:
        LlamaConfig.from_folder(tmp_path)

    assert raised.value.code == "model-file-unreadable"
    assert reason in str(raised.value)


def test_folder_without_config_is_refused(tmp_path: Path) -> None:
    """A folder that has no config.json is refused, and what it has is listed."""
    (tmp_path / "pytorch_model.bin").touch()

    with pytest.raises(ModelError) as raised:
        LlamaConfig.from_folder(tmp_path)

    assert raised.value.code == "model-file-missing"
    assert str(raised.value) == (
        f"config.json was expected in {str(tmp_path)!r}, which has pytorch_model.bin. "
        f"Name a folder that save_pretrained of transformers wrote."
    )


def test_path_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    """A folder that is not there is told from one that is empty."""
    with pytest.raises(ModelError) as raised:
        LlamaConfig.from_folder(tmp_path / "nowhere")

    assert raised.value.code == "model-file-missing"
    assert "which is no folder" in str(raised.value)
