from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import LlamaForCausalLM

from backend_caps.runtime.model.draft_loading import load_eagle, load_standalone
from backend_caps.runtime.model.errors import unfit_weights
from backend_caps.runtime.model.layers import DecoderLayer, TensorOptions
from backend_caps.runtime.model.llama import (
    LlamaModel,
    StoredWeight,
    check_weights,
    fill_weights,
    load_llama,
    open_checkpoint,
)
from backend_caps.runtime.model.random_models import eagle_of, first_layers, random_llama
from tests.runtime.model.folders import LLAMA3_ROPE, refused, save
from tests.runtime.model.reference import Cache, run, run_head, stretches_of

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
    """Missing, unexpected and misshapen weights are reported in one error, by their names."""
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

    assert load_llama(folder, "cpu").device.type == "cpu"


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
    error = unfit_weights("m", missing=tuple(f"w{number}" for number in range(20)))

    assert "missing: w0, w1, w2, w3, w4, w5, w6, w7 and 12 more." in error.message


CPU = torch.device("cpu")


def test_layer_is_filled_without_its_model(tmp_path: Path) -> None:
    """A draft head takes a decoder layer, and gives it weights under its own names."""
    layer = DecoderLayer(random_llama(tmp_path), 0, TensorOptions(CPU, torch.float32))
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


PROMPT = [5, 6, 7, 8]


def _target(folder: Path, dtype: torch.dtype = torch.float32) -> LlamaModel:
    random_llama(folder / "target", dtype=dtype)
    return load_llama(folder / "target", "cpu")


def test_standalone_draft_scores_as_its_model(tmp_path: Path) -> None:
    """A standalone draft's scores are those of the small model, whatever states it is given."""
    target = _target(tmp_path)
    random_llama(tmp_path / "draft", seed=1, num_layers=1, hidden_size=32)
    draft = load_standalone(tmp_path / "draft", target)
    nothing = torch.full((4, 64), torch.nan)

    states = run_head(draft, Cache(draft.model), [PROMPT], nothing, (0,))

    expected = run(draft.model, Cache(draft.model), [PROMPT], (0,))
    torch.testing.assert_close(draft.logits(states), expected)


def test_standalone_draft_of_another_vocabulary_is_refused(tmp_path: Path) -> None:
    """A draft's tokens mean the target's, so that both know as many."""
    target = _target(tmp_path)
    random_llama(tmp_path / "draft", vocab_size=100)

    whole = (
        f"vocab_size is 100 in the draft model {str(tmp_path / 'draft')!r}; the target's 512 was "
        f"expected. Name a draft that was made for this target."
    )
    with refused("draft-mismatch", whole=whole):
        load_standalone(tmp_path / "draft", target)


def test_positions_beyond_the_config_s_are_computed(tmp_path: Path) -> None:
    """A table that was asked to be longer tells positions apart that the config does not have."""
    target = _target(tmp_path)
    random_llama(tmp_path / "draft", max_position_embeddings=16)
    draft = load_standalone(tmp_path / "draft", target, num_positions=20)

    beyond = run(draft.model, Cache(draft.model), [PROMPT], (15,))

    # Attention knows distances alone, so that the scores are those of the first positions.
    assert draft.num_positions == 20
    torch.testing.assert_close(
        beyond, run(draft.model, Cache(draft.model), [PROMPT], (0,)), atol=1e-4, rtol=1e-4
    )


EASY = 0.05
"""What later layers add, where a draft is to be right often."""


def _tokens(seed: int, vocab_size: int) -> list[int]:
    drawn = torch.randint(0, vocab_size, (200,), generator=torch.Generator().manual_seed(seed))
    return list(map(int, drawn))


def _states(target: LlamaModel, tokens: list[int]) -> Tensor:
    """Return what the target's LM head scores of each token."""
    return target.hidden_states(*stretches_of(Cache(target), [tokens], (0,)))


def _agreement(one: Tensor, other: Tensor) -> float:
    return float((one.argmax(-1) == other.argmax(-1)).float().mean())


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("vocab_size", "hidden_size", "tie"),
    [
        pytest.param(512, 64, False, id="the default"),
        pytest.param(64, 16, False, id="tiny"),
        pytest.param(512, 64, True, id="tied"),
    ],
)
def test_first_layer_often_agrees_with_an_easy_target(
    tmp_path: Path, seed: int, vocab_size: int, hidden_size: int, *, tie: bool
) -> None:
    """A draft of the first layer names the target's token in 3 of 4 places, a head in 2 of 3."""
    random_llama(
        tmp_path / "target",
        seed=seed,
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        tie=tie,
        later_gain=EASY,
    )
    first_layers(tmp_path / "draft", tmp_path / "target")
    eagle_of(tmp_path / "head", tmp_path / "target")
    target, tokens = load_llama(tmp_path / "target", "cpu"), _tokens(seed, vocab_size)
    states = _states(target, tokens)
    draft = load_standalone(tmp_path / "draft", target)
    head = load_eagle(tmp_path / "head", target)

    scores = run(draft.model, Cache(draft.model), [tokens], (0,))
    drafted = run_head(head, Cache(head), [tokens[1:]], states[:-1], (0,))

    expected = target.lm_head(states)
    assert _agreement(scores, expected) >= 0.75
    assert _agreement(head.logits(drafted), expected[1:]) >= 0.66


@pytest.mark.parametrize("seed", range(3))
def test_head_scores_on_the_target_s_scale(tmp_path: Path, seed: int) -> None:
    """A head's scores spread as the target's do: a tree of drafts is grown by probabilities."""
    random_llama(tmp_path / "target", seed=seed, later_gain=EASY)
    eagle_of(tmp_path / "head", tmp_path / "target")
    target, tokens = load_llama(tmp_path / "target", "cpu"), _tokens(seed, 512)
    states, head = _states(target, tokens), load_eagle(tmp_path / "head", target)

    drafted = run_head(head, Cache(head), [tokens[1:]], states[:-1], (0,))

    ratio = head.logits(drafted).std() / target.lm_head(states).std()
    assert 0.8 < float(ratio) < 1.25


def test_first_layers_are_the_target_s(tmp_path: Path) -> None:
    """Every weight of a draft of first layers is the target's, to the bit."""
    save(tmp_path / "target", num_hidden_layers=3, max_shard_size="10KB")

    config = first_layers(tmp_path / "draft", tmp_path / "target", num_layers=2)

    weights = dict(load_llama(tmp_path / "target", "cpu").named_weights())
    own = load_file(tmp_path / "draft" / "model.safetensors")
    assert config.num_hidden_layers == 2
    assert all(torch.equal(weight, weights[name]) for name, weight in own.items())


def test_all_layers_make_the_target(tmp_path: Path) -> None:
    """A draft of all layers is the target, whatever its config says of RoPE, biases and ends."""
    changes = {"rope_parameters": LLAMA3_ROPE, "attention_bias": True, "eos_token_id": [3, 5]}
    save(tmp_path / "target", **changes)  # type: ignore[arg-type] # a table of any
    first_layers(tmp_path / "draft", tmp_path / "target", num_layers=2)

    target, draft = (load_llama(tmp_path / name, "cpu") for name in ("target", "draft"))

    scores, expected = (run(own, Cache(own), [[5, 6, 7]], (0,)) for own in (draft, target))
    assert draft.config == target.config
    assert torch.equal(scores, expected)


def test_first_layers_are_a_model_of_transformers(tmp_path: Path) -> None:
    """The draft's folder loads in transformers, which has the same scores."""
    random_llama(tmp_path / "target", num_layers=3, later_gain=EASY)
    first_layers(tmp_path / "draft", tmp_path / "target")
    draft, prompt = load_llama(tmp_path / "draft", "cpu"), torch.tensor([[5, 6, 7]])

    with torch.no_grad():
        expected = LlamaForCausalLM.from_pretrained(tmp_path / "draft")(prompt).logits[0]

    torch.testing.assert_close(
        run(draft, Cache(draft), prompt.tolist(), (0,)), expected, atol=1e-4, rtol=1e-4
    )


@pytest.mark.parametrize("num_layers", [0, 3])
def test_layers_that_the_target_has_not_are_refused(tmp_path: Path, num_layers: int) -> None:
    """A draft has one of the target's layers at least, and no more than there are."""
    random_llama(tmp_path / "target")

    whole = (
        f"num_layers is {num_layers}; 1 to 2 was expected, as {str(tmp_path / 'target')!r} has 2. "
        f"Ask for fewer layers, or for one."
    )
    with refused("draft-layers", whole=whole):
        first_layers(tmp_path / "draft", tmp_path / "target", num_layers=num_layers)
    assert not (tmp_path / "draft").exists()
