from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import LlamaForCausalLM

from backend_caps.runtime.model.draft_loading import load_eagle, load_standalone
from backend_caps.runtime.model.llama import LlamaModel, load_llama
from backend_caps.runtime.model.random_models import eagle_of, first_layers, random_llama
from tests.runtime.model.folders import LLAMA3_ROPE, refused, save
from tests.runtime.model.reference import Cache, run, run_head, stretches_of

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
