from __future__ import annotations

from pathlib import Path

import torch

from backend_caps.runtime.model.draft_loading import load_standalone
from backend_caps.runtime.model.llama import LlamaModel, load_llama
from backend_caps.runtime.model.random_models import random_llama
from tests.runtime.model.folders import refused
from tests.runtime.model.reference import Cache, run, run_head

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
