from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from backend_caps.runtime.model.errors import unfit_weights
from backend_caps.runtime.model.layers import DecoderLayer, TensorOptions
from backend_caps.runtime.model.llama import (
    StoredWeight,
    check_weights,
    fill_weights,
    load_llama,
    open_checkpoint,
)
from backend_caps.runtime.model.random_models import random_llama
from tests.runtime.model.folders import refused

NORM, QUERIES = "model.norm.weight", "model.layers.1.self_attn.q_proj.weight"
INDEX = "model.safetensors.index.json"
Weights = dict[str, Tensor]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write a model."""
    random_llama(tmp_path)
    return tmp_path


def _rewrite(folder: Path, change: Callable[[Weights], object]) -> None:
    """Change what a folder's one file holds."""
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors")


def _shard(folder: Path, index: object) -> None:
    """Move a folder's one file under an index."""
    (folder / "model.safetensors").rename(folder / "a.safetensors")
    (folder / INDEX).write_text(json.dumps(index), "utf-8")


def test_faults_of_weights_come_together(folder: Path) -> None:
    """Missing, unexpected and misshapen weights are told in one error, by their names."""
    _rewrite(folder, lambda weights: weights.update(extra=weights.pop(NORM)))
    _rewrite(folder, lambda weights: weights.update({QUERIES: torch.zeros(3, 5)}))

    whole = (
        f"the weights in {str(folder)!r} do not fit its config.json: missing: {NORM}; "
        f"unexpected: extra; unfit: {QUERIES} of shape (3, 5) instead of (64, 64). "
        f"Exactly the weights of that config were expected. Take both from the same model."
    )
    with refused("model-weights", whole=whole):
        load_llama(folder, "cpu")


@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_floating_point_weight_is_converted(folder: Path, stored: torch.dtype) -> None:
    """A weight of any dtype that holds the numbers themselves becomes one of the model's."""
    _rewrite(folder, lambda weights: weights.update({NORM: weights[NORM].to(stored)}))

    model = load_llama(folder, "cpu", dtype=torch.bfloat16)

    torch.testing.assert_close(model.norm.weight, torch.full((64,), 4.0, dtype=torch.bfloat16))


@pytest.mark.parametrize("stored", [torch.int8, torch.float8_e4m3fn])
def test_quantized_weight_is_refused(folder: Path, stored: torch.dtype) -> None:
    """A weight whose numbers need a scale is no weight that could be converted."""
    _rewrite(folder, lambda weights: weights.update({NORM: weights[NORM].to(stored)}))

    with refused("model-weights", "instead of F32 or BF16 or F16 or F64"):
        load_llama(folder, "cpu")


def test_dtype_that_is_not_computed_is_refused(folder: Path) -> None:
    """A model is asked for in float32 or bfloat16, or not at all."""
    whole = (
        "dtype is torch.float16; torch.float32 or torch.bfloat16 was expected. "
        "Pass dtype=torch.float32 to load_llama: other weights are converted."
    )
    with refused("unsupported-dtype", whole=whole):
        load_llama(folder, "cpu", dtype=torch.float16)


def test_tables_of_old_checkpoints_are_passed(folder: Path) -> None:
    """A stored table of frequencies says what the config says, and is left out."""
    table = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(8)}
    _rewrite(folder, lambda weights: weights.update(table))

    model = load_llama(folder, "cpu")

    assert model.device.type == "cpu"


def _store_lm_head(folder: Path, difference: float) -> None:
    def change(weights: Weights) -> None:
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"] + difference

    _rewrite(folder, change)


def test_stored_copy_of_a_tied_weight_is_passed(tmp_path: Path) -> None:
    """An LM head that is tied, and stored all the same, is the embedding."""
    random_llama(tmp_path, tie=True)
    _store_lm_head(tmp_path, 0.0)

    model = load_llama(tmp_path, "cpu")

    assert model.lm_head.weight is model.embedding.weight


def test_stored_weight_that_contradicts_the_tie_is_refused(tmp_path: Path) -> None:
    """An LM head of its own in a model that ties it is no copy, and is not dropped silently."""
    random_llama(tmp_path, tie=True)
    _store_lm_head(tmp_path, 1.0)

    with refused("model-weights", ": unexpected: lm_head.weight. Exactly"):
        load_llama(tmp_path, "cpu")


@pytest.mark.parametrize(
    "cut",
    [
        pytest.param(lambda whole: whole[:-100], id="cut off"),
        pytest.param(lambda whole: whole[:6], id="shorter than a header"),
        pytest.param(lambda _: b"", id="empty"),
        pytest.param(lambda whole: b"\xff" * 8 + whole[8:], id="a header without end"),
        pytest.param(lambda _: b"version https://git-lfs.github.com/spec/v1\n", id="a pointer"),
    ],
)
def test_file_that_is_no_safetensors_is_refused(
    folder: Path, cut: Callable[[bytes], bytes]
) -> None:
    """A file of weights that is cut off or another's is named."""
    path = folder / "model.safetensors"
    path.write_bytes(cut(path.read_bytes()))

    with refused("model-file-unreadable", f"{str(path)!r} cannot be read: "):
        load_llama(folder, "cpu")


def test_index_leads_to_the_weights(folder: Path) -> None:
    """Where there is no whole file, the weights are in those that the index names."""
    whole = load_file(folder / "model.safetensors")
    _shard(folder, {"weight_map": dict.fromkeys(whole, "a.safetensors")})

    model = load_llama(folder, "cpu")

    assert all(torch.equal(weight, whole[name]) for name, weight in model.named_weights())


@pytest.mark.parametrize(
    ("index", "reason"),
    [
        pytest.param([], "it has no weight_map", id="a list"),
        pytest.param({}, "it has no weight_map", id="no map"),
        pytest.param({"weight_map": {NORM: 3}}, "names 3", id="a number"),
        pytest.param({"weight_map": {NORM: "../a"}}, "names '../a'", id="outside of the folder"),
    ],
)
def test_index_that_is_none_is_refused(folder: Path, index: object, reason: str) -> None:
    """An index that leads nowhere, or out of the folder, is named with its fault."""
    _shard(folder, index)

    with refused("model-file-unreadable", reason):
        load_llama(folder, "cpu")


def test_missing_shard_is_refused(folder: Path) -> None:
    """A file that the index names and the folder lacks is named."""
    _shard(folder, {"weight_map": {NORM: "b.safetensors"}})

    with refused("model-file-missing", f"b.safetensors, which {INDEX} names, was expected in "):
        load_llama(folder, "cpu")


def test_folder_without_safetensors_is_refused(folder: Path) -> None:
    """A folder with weights in another format is refused, and what it has is listed."""
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")

    with refused("model-file-missing", "which has config.json, pytorch_model.bin."):
        load_llama(folder, "cpu")


def test_long_list_of_weights_is_cut() -> None:
    """An error names the first weights, and counts the others."""
    names = tuple(f"w{number}" for number in range(20))

    error = unfit_weights("m", missing=names)

    assert "missing: w0, w1, w2, w3, w4, w5, w6, w7 and 12 more." in error.message


CPU = torch.device("cpu")


def test_layer_is_filled_without_its_model(tmp_path: Path) -> None:
    """A draft head takes a decoder layer, and gives it weights under its own names."""
    config = random_llama(tmp_path)
    layer = DecoderLayer(config, 0, TensorOptions(CPU, torch.float32))
    whole = load_llama(tmp_path, CPU)

    with open_checkpoint(tmp_path) as stored:
        own = {name: stored[f"model.layers.0.{name}"] for name, _ in layer.named_weights()}
        check_weights(tmp_path, layer, own)
        fill_weights(layer, own)

    expected = dict(whole.layers[0].named_weights())
    assert all(torch.equal(weight, expected[name]) for name, weight in layer.named_weights())


def test_redundant_weight_is_none_that_is_unexpected(tmp_path: Path) -> None:
    """A weight is redundant by name: any other one that a part does not have is unexpected."""
    layer = DecoderLayer(random_llama(tmp_path), 0, TensorOptions(CPU, torch.float32))

    with open_checkpoint(tmp_path) as stored:
        own: dict[str, StoredWeight] = {
            name.removeprefix("model.layers.0."): weight for name, weight in stored.items()
        }
        others = [name for name in own if name.startswith("model.")]
    with refused("model-weights", ": unexpected: lm_head.weight. Exactly"):
        check_weights(tmp_path, layer, own, redundant=others)
