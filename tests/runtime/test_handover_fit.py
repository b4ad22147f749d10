"""Whom an engine takes requests from, and what it says of what does not fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from backend_caps.runtime import Engine, EngineError, Handover, PromptStates
from backend_caps.runtime.disaggregation import fingerprint
from backend_caps.runtime.model.llama import load_llama
from backend_caps.runtime.model.random_models import random_llama
from tests.runtime import handovers

EAGLE = handovers.Way(algorithm="EAGLE", topk=2)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the models of every engine here."""
    return handovers.write_models(tmp_path_factory.mktemp("fit"))


@pytest.fixture(scope="module")
def handover(models: Path) -> Handover:
    """Run a prompt of nine tokens where an EAGLE head drafts."""
    return handovers.hand_over_all(models, EAGLE, handovers.PROMPTS[2:3])[0]


@pytest.fixture(scope="module")
def decode(models: Path) -> Engine:
    """Make an engine that takes such a request over."""
    return handovers.make_engine(models, EAGLE, "decode")


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("keys", lambda own: own[:, :-1], r"keys have shape \(2, 8, 1, 16\) instead of \(2, 9,"),
        ("values", lambda own: own.bfloat16(), r"values are torch.bfloat16 instead of torch.float"),
        ("draft_keys", lambda _: None, r"it has no draft_keys"),
        ("hidden_states", lambda _: torch.zeros(7), r"states have shape \(7,\) instead of \(32,\)"),
        ("topk_p", lambda own: own.to("meta"), r"its topk_p are on meta, and not on the host"),
    ],
)
def test_states_that_do_not_fit_are_refused(
    decode: Engine,
    handover: Handover,
    name: str,
    change: Callable[[Tensor], Tensor | None],
    words: str,
) -> None:
    """What is otherwise than the engine's own is named, with what it should be."""
    kept = {key: own for key, own in handover.states.tensors.items() if key != name}
    changed = change(handover.states.tensors[name])
    states = PromptStates(**kept if changed is None else {**kept, name: changed})

    with pytest.raises(EngineError, match=words):
        decode.take_over(replace(handover, states=states))


def test_every_misfit_is_named_at_once(decode: Engine, handover: Handover) -> None:
    """Several faults are one error."""
    states = handover.states
    unfit = replace(states, keys=states.keys[:, :-1], values=states.values.bfloat16())

    with pytest.raises(EngineError) as caught:
        decode.take_over(replace(handover, states=unfit, model="f" * 64))

    assert str(caught.value).count("; ") == 2


def test_handover_of_other_weights_is_refused(handover: Handover, tmp_path: Path) -> None:
    """Models of the same shape and of other weights are distinguished."""
    random_llama(
        tmp_path / "target",
        vocab_size=handovers.VOCAB_SIZE,
        hidden_size=32,
        num_layers=2,
        num_heads=2,
        num_kv_heads=1,
        seed=9,
    )
    decode = handovers.make_engine(tmp_path, handovers.Way(), "decode")

    with pytest.raises(EngineError, match=r"it is of model \w+, and the engine has"):
        decode.take_over(handover)


def test_fingerprint_is_of_the_weights(models: Path, tmp_path: Path) -> None:
    """It is the same whenever a model is loaded, and another one for another number."""
    target = tmp_path / "target"
    target.mkdir()
    weights = load_file(models / "target" / "model.safetensors")
    weights["model.norm.weight"][0] += 1
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    (target / "config.json").write_bytes((models / "target" / "config.json").read_bytes())
    folders = (models / "target", models / "target", target)

    loaded = [load_llama(folder, "cpu") for folder in folders]
    first, again, other = (fingerprint(model.config, model) for model in loaded)

    assert (first == again, first == other) == (True, False)


ASKED: dict[str, Callable[[Engine, Handover], object]] = {
    "generate": lambda engine, _: engine.generate([[1]]),
    "submit": lambda engine, _: engine.submit([1], handovers.GREEDY),
    "hand_over": lambda engine, _: engine.hand_over([[1]], handovers.GREEDY),
    "take_over": lambda engine, own: engine.take_over(own),
}


@pytest.mark.parametrize(
    ("mode", "asked", "expected"),
    [
        ("prefill", "generate", "null"),
        ("prefill", "submit", "null"),
        ("prefill", "take_over", "decode"),
        ("decode", "generate", "null"),
        ("decode", "submit", "null"),
        ("decode", "hand_over", "prefill"),
        ("null", "hand_over", "prefill"),
        ("null", "take_over", "decode"),
    ],
)
def test_engine_refuses_the_other_ones_part(
    models: Path, handover: Handover, mode: str, asked: str, expected: str
) -> None:
    """Each mode does its own part, and the error names the mode that does the rest."""
    engine = handovers.make_engine(models, handovers.Way(), mode)
    words = (
        f"{asked} was asked of an engine of --disaggregation-mode {mode}; one of mode {expected}"
    )

    with pytest.raises(EngineError, match=words):
        ASKED[asked](engine, handover)
