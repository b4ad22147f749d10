"""EAGLE3 heads from folders; what they compute is compared in `tests/upstream/test_eagle3.py`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from backend_caps.runtime.model.config import LlamaConfig
from backend_caps.runtime.model.draft_loading import load_eagle3
from backend_caps.runtime.model.eagle3 import Eagle3Config, Eagle3Head
from backend_caps.runtime.model.layers import TensorOptions
from backend_caps.runtime.model.llama import LlamaModel, load_llama
from backend_caps.runtime.model.random_models import (
    eagle3_of,
    random_eagle,
    random_llama,
    random_weight,
)
from tests.runtime.model.folders import refused


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


VOCAB_SIZE = 64
LAYER_IDS, USES = "eagle_aux_hidden_state_layer_ids", "use_aux_hidden_state"


@pytest.fixture
def target(tmp_path: Path) -> LlamaModel:
    """Write a target of 8 layers, whose default layers to read are 2, 4 and 5, and load it."""
    random_llama(tmp_path / "target", vocab_size=VOCAB_SIZE, num_layers=8, hidden_size=32)
    return load_llama(tmp_path / "target", "cpu")


def _rewrite(folder: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    path = folder / "head" / "model.safetensors"
    weights = load_file(path)
    change(weights)
    save_file(weights, path)


def test_head_shares_the_target_s_embedding_unless_it_has_one(
    tmp_path: Path, target: LlamaModel
) -> None:
    """A head without an embedding reads the target's; a stored one is its own."""
    random_eagle3(tmp_path / "head", target.config)
    own = load_eagle3(tmp_path / "head", target)
    _rewrite(tmp_path, lambda weights: weights.pop("embed_tokens.weight"))

    shared = load_eagle3(tmp_path / "head", target)

    assert own.embedding is not target.embedding
    assert shared.embedding is target.embedding


def test_head_of_the_whole_vocabulary_shares_the_lm_head_that_it_lacks(
    tmp_path: Path, target: LlamaModel
) -> None:
    """Without `draft_vocab_size` and LM head, a head scores the target's tokens by its LM head."""
    random_eagle3(tmp_path / "head", target.config, draft_vocab_size=None)
    _rewrite(tmp_path, lambda weights: weights.pop("lm_head.weight"))

    head = load_eagle3(tmp_path / "head", target)

    assert (head.lm_head, head.vocab_size) == (target.lm_head, VOCAB_SIZE)
    assert torch.equal(head.target_ids(torch.arange(4)), torch.arange(4))


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        pytest.param({}, (2, 4, 5), id="default"),
        pytest.param({LAYER_IDS: [7, 1]}, (1, 7), id="inputs"),
        pytest.param({"eagle_config": {LAYER_IDS: [1, 3, 7]}}, (2, 4, 8), id="SGLang"),
    ],
)
def test_config_names_the_layers_that_are_read(
    tmp_path: Path, target: LlamaModel, keys: dict[str, object], expected: tuple[int, ...]
) -> None:
    """At the top ids name inputs of layers; in SGLang's `eagle_config` they name outputs."""
    assert random_eagle3(tmp_path / "head", target.config, **keys).layers_read(8) == expected
    assert load_eagle3(tmp_path / "head", target).num_features == len(expected) * 32


@pytest.mark.parametrize("layer_ids", [[1, 1, 2], [0, 1, 9], [-1, 0, 1]])
def test_layers_that_the_target_lacks_are_refused(
    tmp_path: Path, target: LlamaModel, layer_ids: list[int]
) -> None:
    """Layers have to be different ones of the target, its last output included."""
    random_eagle3(tmp_path / "head", target.config, eagle_aux_hidden_state_layer_ids=layer_ids)

    with refused("model-config", "different layers from 0 to 8, as the target has"):
        load_eagle3(tmp_path / "head", target)


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        pytest.param({"num_hidden_layers": 2}, "num_hidden_layers is 2", id="two layers"),
        pytest.param({"norm_before_fc": True, "fc_norm": True}, "fc_norm is True", id="two norms"),
        pytest.param({"eagle_config": {USES: False}}, f"eagle_config.{USES} is False", id="none"),
        pytest.param({"layer_types": ["sliding_attention"]}, "layer_types is", id="sliding window"),
    ],
)
def test_config_of_what_is_not_computed_is_refused(
    tmp_path: Path, target: LlamaModel, keys: dict[str, object], named: str
) -> None:
    """A head that this runtime would compute wrongly is refused by the key that shows it."""
    with refused("unsupported-model", named):
        random_eagle3(tmp_path / "head", target.config, **keys)


def test_head_of_another_target_is_refused(tmp_path: Path, target: LlamaModel) -> None:
    """The width of the target's states and its vocabulary are what a head was made for."""
    random_eagle3(tmp_path / "head", target.config, target_hidden_size=48, vocab_size=80)

    with pytest.raises(ExceptionGroup) as raised:
        load_eagle3(tmp_path / "head", target)

    assert [str(fault).split()[0] for fault in raised.value.exceptions] == [
        "target_hidden_size",
        "vocab_size",
    ]


@pytest.mark.parametrize(
    ("offset", "fault"),
    [
        pytest.param(VOCAB_SIZE, f"maps a token to {VOCAB_SIZE} instead of 0 to 63", id="outside"),
        pytest.param(0, "maps several tokens to one", id="not one to one"),
    ],
)
def test_d2t_that_names_no_token_of_the_target_is_refused(
    tmp_path: Path, target: LlamaModel, offset: int, fault: str
) -> None:
    """Each of a head's tokens is another one of the target's."""
    random_eagle3(tmp_path / "head", target.config)
    _rewrite(tmp_path, lambda weights: weights["d2t"][:2].copy_(torch.tensor([offset, -1])))

    with refused("model-weights", fault):
        load_eagle3(tmp_path / "head", target)


def test_head_of_eagle_is_refused(tmp_path: Path, target: LlamaModel) -> None:
    """A head of EAGLE 1 or 2 is known by its weights, and the algorithm that runs it is named."""
    random_eagle(tmp_path / "head", target.config)

    with refused("head-kind", "Run it with --speculative-algorithm EAGLE, or"):
        load_eagle3(tmp_path / "head", target)


def test_eagle3_of_a_target_is_in_the_speculators_layout(
    tmp_path: Path, target: LlamaModel
) -> None:
    """The head made of a target loads from nested keys, and knows three of every four tokens."""
    eagle3_of(tmp_path / "head", tmp_path / "target")

    head = load_eagle3(tmp_path / "head", target)

    known = head.target_ids(torch.arange(head.vocab_size)).tolist()
    assert known == [token for token in range(VOCAB_SIZE) if token % 4 != 3]
    config = Eagle3Config.from_folder(tmp_path / "head")
    assert (config.norm_before_residual, config.layers_read(8)) == (True, (0, 4, 8))


def test_tied_head_of_an_own_vocabulary_keeps_its_lm_head(
    tmp_path: Path, target: LlamaModel
) -> None:
    """An LM head over fewer tokens is no embedding of the target's, whatever config.json ties."""
    random_eagle3(tmp_path / "head", target.config, tie_word_embeddings=True)

    head = load_eagle3(tmp_path / "head", target)

    logits = head.lm_head(torch.zeros(2, target.config.hidden_size))
    assert logits.shape == (2, VOCAB_SIZE // 2)
