from __future__ import annotations

from pathlib import Path

import pytest
import torch

from backend_caps.runtime.model.checkpoint import (
    StoredWeight,
    check_weights,
    fill_weights,
    open_checkpoint,
)
from backend_caps.runtime.model.errors import ModelError
from backend_caps.runtime.model.layers import DecoderLayer
from backend_caps.runtime.model.llama import load_llama
from backend_caps.runtime.model.random_models import random_llama

CPU = torch.device("cpu")


def test_layer_is_filled_without_its_model(tmp_path: Path) -> None:
    """A draft head takes a decoder layer, and gives it weights under its own names."""
    config = random_llama(tmp_path)
    layer, whole = DecoderLayer(config, 0, CPU, torch.float32), load_llama(tmp_path, CPU)

    with open_checkpoint(tmp_path) as stored:
        own = {name: stored[f"model.layers.0.{name}"] for name, _ in layer.named_weights()}
        check_weights(tmp_path, layer, own)
        fill_weights(layer, own)

    expected = dict(whole.layers[0].named_weights())
    assert all(torch.equal(weight, expected[name]) for name, weight in layer.named_weights())


def test_redundant_weight_is_none_that_is_unexpected(tmp_path: Path) -> None:
    """A weight is redundant by name: any other one that a part does not have is unexpected."""
    layer = DecoderLayer(random_llama(tmp_path), 0, CPU, torch.float32)

    with open_checkpoint(tmp_path) as stored:
        own: dict[str, StoredWeight] = {
            name.removeprefix("model.layers.0."): weight for name, weight in stored.items()
        }
        others = [name for name in own if name.startswith("model.")]
        with pytest.raises(ModelError) as raised:
            check_weights(tmp_path, layer, own, redundant=others)

    assert raised.value.code == "model-weights"
    assert ": unexpected: lm_head.weight. Exactly" in str(raised.value)
