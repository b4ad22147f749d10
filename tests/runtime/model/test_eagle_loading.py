from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from backend_caps.runtime.model.draft import EagleHead
from backend_caps.runtime.model.draft_loading import load_eagle
from backend_caps.runtime.model.llama import LlamaModel, load_llama
from backend_caps.runtime.model.random_models import random_eagle, random_llama
from tests.runtime.model.folders import edit, refused

Weights = dict[str, Tensor]
FC, NORM = "fc.weight", "layers.0.post_attention_layernorm.weight"
INPUT_NORM = "layers.0.input_layernorm.weight"


@pytest.fixture
def target(tmp_path: Path) -> LlamaModel:
    """Write a target and a head that fits it, and load the target."""
    random_eagle(tmp_path / "head", random_llama(tmp_path / "target"))
    return load_llama(tmp_path / "target", "cpu")


def _rewrite(folder: Path, added: Mapping[str, int], below: Collection[str] | None = ()) -> Weights:
    """Add weights of so many numbers to a head's file, name some below `model`; return all.

    Args:
        folder: has the head.
        added: sizes by name.
        below: None: all of them.
    """
    path = folder / "head" / "model.safetensors"
    own = {name: torch.arange(float(size)) for name, size in added.items()}
    named = {
        f"model.{name}" if below is None or name in below else name: weight
        for name, weight in (load_file(path) | own).items()
    }
    save_file(named, path)
    return named


def _configure(folder: Path, **values: object) -> None:
    edit(folder / "head" / "config.json", lambda document: document.update(values))


def _hold(head: EagleHead, stored: Weights) -> bool:
    """Tell whether a head's weights are those that a file has, under either name."""
    return all(
        torch.equal(weight, stored[name if name in stored else f"model.{name}"])
        for name, weight in head.named_weights()
    )


@pytest.mark.parametrize(
    ("added", "below"),
    [
        pytest.param({}, (), id="plain names"),
        pytest.param({}, None, id="names below model"),
        pytest.param({}, [FC], id="one below"),
        pytest.param({"embed_tokens.weight": 3}, (), id="an embedding"),
        pytest.param(
            {"model.embed_tokens.weight": 3, "lm_head.weight": 3},
            (),
            id="an embedding below model, and an LM head",
        ),
        pytest.param(
            {"layers.0.self_attn.rotary_emb.inv_freq": 8}, (), id="a table of an old checkpoint"
        ),
    ],
)
def test_head_s_own_weights_are_loaded(
    tmp_path: Path, target: LlamaModel, added: dict[str, int], below: Collection[str] | None
) -> None:
    """A head's weights are found under each of their names, and what is the target's is passed."""
    stored = _rewrite(tmp_path, added, below)

    assert _hold(load_eagle(tmp_path / "head", target), stored)


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

    assert load_eagle(tmp_path / "head", target).config.num_hidden_layers == 1


@pytest.mark.parametrize("says", [pytest.param(True, id="said"), pytest.param(None, id="not said")])
def test_bias_is_loaded(tmp_path: Path, target: LlamaModel, says: object) -> None:
    """A bias that is stored is loaded, also where the config does not speak of it."""
    _configure(tmp_path, bias=says)
    stored = _rewrite(tmp_path, {"fc.bias": 64})

    head = load_eagle(tmp_path / "head", target)

    assert head.fc.bias is not None
    assert _hold(head, stored)


def test_absent_bias_is_none(tmp_path: Path, target: LlamaModel) -> None:
    """Where the config does not speak of a bias, and none is stored, there is none."""
    _configure(tmp_path, bias=None)

    assert load_eagle(tmp_path / "head", target).fc.bias is None


@pytest.mark.parametrize(
    ("bias", "added", "fault"),
    [
        pytest.param(True, (), "missing: fc.bias", id="a bias that is not stored"),
        pytest.param(False, ["fc.bias"], "unexpected: fc.bias", id="a bias that is denied"),
        pytest.param(False, [INPUT_NORM], f"unexpected: {INPUT_NORM}", id="a norm it has not"),
        pytest.param(False, [f"model.{NORM}"], f"unexpected: model.{NORM}", id="two for a place"),
    ],
)
def test_weights_that_contradict_the_config_are_refused(
    tmp_path: Path, target: LlamaModel, bias: object, added: Sequence[str], fault: str
) -> None:
    """What the config says has to be true, and of two weights none is dropped silently."""
    _configure(tmp_path, bias=bias)
    _rewrite(tmp_path, dict.fromkeys(added, 64))

    with refused("model-weights", f": {fault}. Exactly"):
        load_eagle(tmp_path / "head", target)


@pytest.mark.parametrize("name", ["midlayer.self_attn.q_proj.weight", "model.midlayer.x", "d2t"])
def test_head_of_eagle3_is_refused(tmp_path: Path, target: LlamaModel, name: str) -> None:
    """A head of EAGLE3 is known by its weights, whatever its config says."""
    _rewrite(tmp_path, {name: 2})
    _configure(tmp_path, architectures=["LlamaForCausalLMEagle3"])

    found = name.removeprefix("model.")
    whole = (
        f"the weights in {str(tmp_path / 'head')!r} are those of an EAGLE3 head: {found} is among "
        f"them; an EAGLE head was expected. Run it with --speculative-algorithm EAGLE3, or name "
        f"another head."
    )
    with refused("head-kind", whole=whole):
        load_eagle(tmp_path / "head", target)


def test_model_that_is_no_head_is_refused(tmp_path: Path, target: LlamaModel) -> None:
    """A folder of a whole model is distinguished from one of a head, and what it is good for."""
    with refused("no-head", "draft with this model by --speculative-algorithm STANDALONE"):
        load_eagle(tmp_path / "target", target)


def test_sizes_that_differ_are_reported_together(tmp_path: Path, target: LlamaModel) -> None:
    """A head that fits in nothing is reported once."""
    other = random_llama(tmp_path / "other", vocab_size=100, hidden_size=32)
    random_eagle(tmp_path / "head", other)

    with pytest.raises(ExceptionGroup) as raised:
        load_eagle(tmp_path / "head", target)

    assert [str(fault).split()[0] for fault in raised.value.exceptions] == [
        "hidden_size",
        "vocab_size",
    ]
