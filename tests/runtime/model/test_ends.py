"""What ends a text: the tokens at which transformers' own `generate` stops."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from backend_caps.runtime.model.config import LlamaConfig
from backend_caps.runtime.model.random_models import random_llama
from tests.runtime.engines import make_engine
from tests.runtime.model.folders import edit, refused

PROMPT = [5, 6, 7]
NUM_TOKENS = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """A model's folder, and what follows the prompt where nothing ends it."""

    folder: Path
    tokens: list[int]


@pytest.fixture
def text(tmp_path: Path) -> Text:
    """Make a model whose documents name no token that ends a text."""
    random_llama(tmp_path)
    return Text(folder=tmp_path, tokens=_continued(tmp_path))


def _continued(folder: Path) -> list[int]:
    """Continue the prompt with transformers, which finds out by itself where to stop."""
    model = LlamaForCausalLM.from_pretrained(folder)
    # transformers' own annotation of `self` does not fit its models
    tokens = model.generate(  # type: ignore[misc]
        torch.tensor([PROMPT]), max_new_tokens=NUM_TOKENS, do_sample=False
    )
    assert isinstance(tokens, Tensor), "nothing but tokens was asked for"
    output: list[int] = tokens[0, len(PROMPT) :].tolist()
    return output


def _name_ends(folder: Path, config: object, generation: Mapping[str, object] | None) -> None:
    """Let config.json name the tokens that end a text, and generation_config.json if there is one.

    A null in config.json is what transformers writes for none.
    """
    edit(folder / "config.json", lambda document: document.update(eos_token_id=config))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation), "utf-8")


def _tokens_at(tokens: Sequence[int], places: object) -> object:
    """Name the tokens that come first at some places among the different ones of a text."""
    different = list(dict.fromkeys(tokens))
    if isinstance(places, list):
        return [different[place] for place in places]
    return different[places] if isinstance(places, int) else None


@pytest.mark.parametrize(
    ("config", "generation"),
    [
        pytest.param(8, {"eos_token_id": 4}, id="one, before that of the config"),
        pytest.param(4, {"eos_token_id": 8}, id="one, behind that of the config"),
        pytest.param(4, {"eos_token_id": [10, 6]}, id="several"),
        pytest.param([4, 6], {"eos_token_id": 5}, id="one for several of the config"),
        pytest.param(4, None, id="none but the config's"),
        pytest.param([6, 4], None, id="none but several of the config"),
        pytest.param(4, {"eos_token_id": None}, id="null"),
        pytest.param(4, {}, id="a document that names none"),
        pytest.param(None, None, id="none at all"),
    ],
)
def test_text_ends_where_transformers_ends_it(
    text: Text, config: object, generation: dict[str, object] | None
) -> None:
    """An engine ends a text at the token at which `generate` does, whichever document names it."""
    named = generation and {
        key: _tokens_at(text.tokens, places) for key, places in generation.items()
    }
    _name_ends(text.folder, _tokens_at(text.tokens, config), named)
    expected = _continued(text.folder)

    (tokens,) = make_engine(text.folder).generate([PROMPT], max_new_tokens=NUM_TOKENS)

    assert tokens == expected


def test_ends_that_transformers_saves_are_read_back(text: Text, tmp_path: Path) -> None:
    """A saved model whose generation config differs from its config ends by the former."""
    model = LlamaForCausalLM.from_pretrained(text.folder)
    model.config.eos_token_id = 3
    model.generation_config.eos_token_id = [9, 4]
    model.save_pretrained(tmp_path / "saved")

    config = LlamaConfig.from_folder(tmp_path / "saved")

    written = json.loads((tmp_path / "saved" / "config.json").read_text("utf-8"))
    assert (config.eos_token_ids, written["eos_token_id"]) == ((9, 4), 3)


@pytest.mark.parametrize(
    ("value", "shown", "expected"),
    [
        pytest.param("4", "4", "a valid integer", id="text"),
        pytest.param(4.5, 4.5, "a valid integer", id="fraction"),
        pytest.param(True, True, "a valid integer", id="bool"),
        pytest.param([9, None], None, "a valid integer", id="null among tokens"),
        pytest.param({"id": 4}, {"id": 4}, "a valid integer", id="object"),
        pytest.param(-1, -1, "greater than or equal to 0", id="below every token"),
    ],
)
def test_end_that_is_no_token_is_refused(
    text: Text, value: object, shown: object, expected: str
) -> None:
    """What cannot be a token is named, with the document that it stands in."""
    _name_ends(text.folder, 4, {"eos_token_id": value})

    whole = (
        f"eos_token_id is {shown!r} in {str(text.folder / 'generation_config.json')!r}; "
        f"{expected} was expected. Correct it there, or download the model anew."
    )
    with refused("model-config", whole=whole):
        LlamaConfig.from_folder(text.folder)


def test_faults_of_both_documents_come_together(text: Text) -> None:
    """A bad value in each document is told at once, each with its own document."""
    edit(text.folder / "config.json", lambda document: document.update(vocab_size="8"))
    _name_ends(text.folder, 4, {"eos_token_id": -1})

    with pytest.raises(ExceptionGroup) as raised:
        LlamaConfig.from_folder(text.folder)

    one, other = map(str, raised.value.exceptions)
    assert one.startswith("vocab_size is ")
    assert f"in {str(text.folder / 'config.json')!r};" in one
    assert other.startswith("eos_token_id is ")
    assert f"in {str(text.folder / 'generation_config.json')!r};" in other


def test_broken_generation_config_is_refused(text: Text) -> None:
    """A generation_config.json that cannot be read is named; config.json does not stand in."""
    path = text.folder / "generation_config.json"
    path.write_bytes(b"[]")

    with refused("model-file-unreadable", f"{str(path)!r} cannot be read: it holds list"):
        LlamaConfig.from_folder(text.folder)
