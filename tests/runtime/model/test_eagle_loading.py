from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from backend_caps.runtime.model.draft import EagleHead
from backend_caps.runtime.model.draft_loading import load_eagle
from backend_caps.runtime.model.errors import ModelError
from backend_caps.runtime.model.llama import LlamaModel, load_llama
from backend_caps.runtime.model.random_models import random_eagle, random_llama
from tests.runtime.model.folders import edit

Weights = dict[str, Tensor]
FC, NORM = "fc.weight", "layers.0.post_attention_layernorm.weight"


@pytest.fixture
def target(tmp_path: Path) -> LlamaModel:
    """Write a target and a head that fits it, and load the target."""
    random_eagle(tmp_path / "head", random_llama(tmp_path / "target"))
    return load_llama(tmp_path / "target", "cpu")


def _rewrite(folder: Path, change: Callable[[Weights], object]) -> Weights:
    """Change what a head's file holds, and return it."""
    path = folder / "head" / "model.safetensors"
    weights = load_file(path)
    change(weights)
    save_file(weights, path)
    return weights


def _configure(folder: Path, **values: object) -> None:
    edit(folder / "head" / "config.json", lambda document: document.update(values))


def _prefix(weights: Weights) -> None:
    for name in list(weights):
        weights[f"model.{name}"] = weights.pop(name)


def _hold(head: EagleHead, stored: Weights) -> bool:
    """Tell whether a head's weights are those that a file has, under either name."""
    return all(
        torch.equal(weight, stored[name if name in stored else f"model.{name}"])
        for name, weight in head.named_weights()
    )


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda _: None, id="plain names"),
        pytest.param(_prefix, id="names below model"),
        pytest.param(
            lambda weights: weights.update({"model.fc.weight": weights.pop(FC)}), id="one below"
        ),
        pytest.param(
            lambda weights: weights.update({"embed_tokens.weight": torch.zeros(3)}),
            id="an embedding",
        ),
        pytest.param(
            lambda weights: weights.update(
                {"model.embed_tokens.weight": torch.zeros(3), "lm_head.weight": torch.zeros(3)}
            ),
            id="an embedding below model, and an LM head",
        ),
        pytest.param(
            lambda weights: weights.update(
                {"layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(8)}
            ),
            id="a table of an old checkpoint",
        ),
    ],
)
def test_head_s_own_weights_are_loaded(
    tmp_path: Path, target: LlamaModel, change: Callable[[Weights], object]
) -> None:
    """A head's weights are found under each of their names, and what is the target's is passed."""
    stored = _rewrite(tmp_path, change)

    head = load_eagle(tmp_path / "head", target)

    assert _hold(head, stored)


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(None, id="nobody says"),
        pytest.param(["LlamaForCausalLM"], id="as the target"),
        pytest.param(["LlamaForCausalLMEagle"], id="as a head"),
    ],
)
def test_head_is_known_by_each_architecture(
    tmp_path: Path, target: LlamaModel, names: list[str] | None
) -> None:
    """Published heads are named as their targets, or as heads; both load."""
    _configure(tmp_path, architectures=names)

    head = load_eagle(tmp_path / "head", target)

    assert head.config.num_hidden_layers == 1


@pytest.mark.parametrize("says", [pytest.param(True, id="said"), pytest.param(None, id="not said")])
def test_bias_is_loaded(tmp_path: Path, target: LlamaModel, says: object) -> None:
    """A bias that is stored is loaded, also where the config does not speak of it."""
    _configure(tmp_path, bias=says)
    stored = _rewrite(tmp_path, lambda weights: weights.update({"fc.bias": torch.arange(64.0)}))

    head = load_eagle(tmp_path / "head", target)

    assert head.fc.bias is not None
    assert _hold(head, stored)


def test_absent_bias_is_none(tmp_path: Path, target: LlamaModel) -> None:
    """Where the config does not speak of a bias, and none is stored, there is none."""
    _configure(tmp_path, bias=None)

    head = load_eagle(tmp_path / "head", target)

    assert head.fc.bias is None


@pytest.mark.parametrize(
    ("says", "change", "kind"),
    [
        pytest.param(True, lambda _: None, "missing", id="said and not stored"),
        pytest.param(
            False,
            lambda weights: weights.update({"fc.bias": torch.zeros(64)}),
            "unexpected",
            id="stored and denied",
        ),
    ],
)
def test_bias_that_contradicts_the_config_is_refused(
    tmp_path: Path, target: LlamaModel, says: object, change: Callable[[Weights], object], kind: str
) -> None:
    """What the config says of the bias has to be true."""
    _configure(tmp_path, bias=says)
    _rewrite(tmp_path, change)

    with pytest.raises(ModelError) as raised:
        load_eagle(tmp_path / "head", target)

    assert raised.value.code == "model-weights"
    assert f": {kind}: fc.bias. Exactly" in str(raised.value)


def test_norm_before_the_first_layer_is_refused(tmp_path: Path, target: LlamaModel) -> None:
    """A head that was trained with a norm before its first layer is none that this one computes."""
    name = "layers.0.input_layernorm.weight"
    _rewrite(tmp_path, lambda weights: weights.update({name: torch.ones(64)}))

    with pytest.raises(ModelError) as raised:
        load_eagle(tmp_path / "head", target)

    assert raised.value.code == "model-weights"
    assert f": unexpected: {name}. Exactly" in str(raised.value)


def test_weight_under_both_names_is_refused(tmp_path: Path, target: LlamaModel) -> None:
    """Of two weights for one place neither is dropped silently."""
    _rewrite(tmp_path, lambda weights: weights.update({f"model.{NORM}": torch.ones(64)}))

    with pytest.raises(ModelError) as raised:
        load_eagle(tmp_path / "head", target)

    assert raised.value.code == "model-weights"
    assert f": unexpected: model.{NORM}. Exactly" in str(raised.value)


@pytest.mark.parametrize("name", ["midlayer.self_attn.q_proj.weight", "model.midlayer.x", "d2t"])
def test_head_of_eagle3_is_refused(tmp_path: Path, target: LlamaModel, name: str) -> None:
    """A head of EAGLE3 is known by its weights, whatever its config says."""
    _rewrite(tmp_path, lambda weights: weights.update({name: torch.zeros(2)}))
    _configure(tmp_path, architectures=["LlamaForCausalLMEagle3"])

    with pytest.raises(ModelError) as raised:
        load_eagle(tmp_path / "head", target)

    found = name.removeprefix("model.")
    assert raised.value.code == "head-kind"
    assert str(raised.value) == (
        f"the weights in {str(tmp_path / 'head')!r} are those of an EAGLE3 head: {found} is among "
        f"them; an EAGLE head was expected. Run it with --speculative-algorithm EAGLE3, or name "
        f"another head."
    )


def test_model_that_is_no_head_is_refused(tmp_path: Path, target: LlamaModel) -> None:
    """A folder of a whole model is told from one of a head, and what it is good for."""
    _rewrite(tmp_path, lambda weights: weights.pop(FC))

    with pytest.raises(ModelError, match="draft with this model by --speculative-algorithm STAND"):
        load_eagle(tmp_path / "head", target)


def test_sizes_that_differ_are_told_together(tmp_path: Path, target: LlamaModel) -> None:
    """A head that fits in nothing is told so once."""
    other = random_llama(tmp_path / "other", vocab_size=100, hidden_size=32)
    random_eagle(tmp_path / "head", other)

    with pytest.raises(ExceptionGroup) as raised:
        load_eagle(tmp_path / "head", target)

    assert [str(fault).split()[0] for fault in raised.value.exceptions] == [
        "hidden_size",
        "vocab_size",
    ]
