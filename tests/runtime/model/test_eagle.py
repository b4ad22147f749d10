from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from backend_caps.runtime import AttentionLayer
from backend_caps.runtime.model.config import LlamaConfig
from backend_caps.runtime.model.draft_loading import load_eagle
from backend_caps.runtime.model.llama import LlamaModel, load_llama
from backend_caps.runtime.model.random_models import random_eagle, random_llama
from backend_caps.simulator import simulate
from tests.runtime.engines import make_engine
from tests.runtime.model.eagles import HeadOracle, save_head
from tests.runtime.model.folders import LLAMA3_ROPE, edit, refused, save
from tests.runtime.model.reference import Cache, run_head

TOKENS = ([3, 14, 15, 92, 65, 35, 89, 79, 32, 38], [46], [26, 43, 38, 32, 79, 50] * 6)
STARTS = (0, 0, 0)


def _hidden(dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(47, 32, generator=torch.Generator().manual_seed(2)).to(dtype)


def _expected(oracle: HeadOracle, embedding: Tensor) -> Tensor:
    """Ask the oracle for the states of each request's tokens, each request by itself."""
    parts = zip(TOKENS, torch.split(_hidden(), [len(own) for own in TOKENS]), strict=True)
    return torch.cat([oracle(embedding[own], hidden) for own, hidden in parts])


def _target(folder: Path, device: torch.device | str = "cpu") -> LlamaModel:
    save(folder / "target")
    return load_llama(folder / "target", device)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="grouped queries"),
        pytest.param({"num_key_value_heads": 4}, id="a key head for each query head"),
        pytest.param({"num_hidden_layers": 3}, id="several layers"),
        pytest.param({"bias": True}, id="a bias of its own"),
        pytest.param({"attention_bias": True, "mlp_bias": True}, id="biases of its layer"),
        pytest.param({"head_dim": 16}, id="heads wider than the hidden state"),
        pytest.param({"rms_norm_eps": 0.1}, id="another epsilon"),
        pytest.param({"rope_parameters": LLAMA3_ROPE}, id="rope that the target has not"),
    ],
)
def test_states_equal_those_of_transformers(
    tmp_path: Path, device: torch.device, changes: dict[str, object]
) -> None:
    """A head's states are those of the same layers in float64, whatever its config asks for."""
    target = _target(tmp_path, device)
    oracle = save_head(tmp_path, **changes)  # type: ignore[arg-type] # a table of any of them

    head = load_eagle(tmp_path, target)
    states = run_head(head, Cache(head), TOKENS, _hidden().to(device), STARTS)

    expected = _expected(oracle, target.embedding.weight.cpu()).float()
    torch.testing.assert_close(states.cpu(), expected, atol=1e-4, rtol=1e-4)


def test_decode_continues_what_prefill_began(tmp_path: Path) -> None:
    """Tokens that come in several stretches have the states of the whole, in each layer's cache."""
    target, oracle = _target(tmp_path), save_head(tmp_path, num_hidden_layers=2)
    head = load_eagle(tmp_path, target)
    cache, own, hidden = Cache(head), TOKENS[0], _hidden()
    cuts = [(0, 5), (5, 8), (8, 9), (9, 10)]

    parts = [run_head(head, cache, [own[i:j]], hidden[i:j], (i,)) for i, j in cuts]

    expected = oracle(target.embedding.weight[own], hidden[:10]).float()
    torch.testing.assert_close(torch.cat(parts), expected, atol=1e-4, rtol=1e-4)


def test_bfloat16_is_near_to_float64(tmp_path: Path) -> None:
    """In bfloat16 the states are off by no more than rounding, and keep the target's dtype."""
    save(tmp_path / "target", dtype=torch.bfloat16)
    target, oracle = load_llama(tmp_path / "target", "cpu"), save_head(tmp_path)
    head = load_eagle(tmp_path, target)

    states = run_head(head, Cache(head), TOKENS, _hidden(torch.bfloat16), STARTS)

    expected = _expected(oracle, target.embedding.weight)
    assert states.dtype is torch.bfloat16
    assert (states - expected).norm() < 0.05 * expected.norm()


def test_logits_are_those_of_the_target_s_head(tmp_path: Path) -> None:
    """A head scores its states as the target scores its own: in float32, by the same weights."""
    target = _target(tmp_path)
    save_head(tmp_path)

    logits = load_eagle(tmp_path, target).logits(_hidden())

    assert logits.dtype is torch.float32
    torch.testing.assert_close(logits, _hidden() @ target.lm_head.weight.T)


class Echo:
    """A context whose attention is the queries."""

    def attend(self, layer: AttentionLayer, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Give the queries back."""
        del layer, k, v
        return q


def test_head_on_a_device_waits_for_nothing(tmp_path: Path) -> None:
    """On a device that does no work before it must, drafting launches and never waits."""
    random_eagle(tmp_path, random_llama(tmp_path / "target"))
    with simulate("lazy") as simulation:
        head = load_eagle(tmp_path, load_llama(tmp_path / "target", "sim"))
        ids, hidden = torch.arange(3).to("sim"), torch.ones(3, 64).to("sim")
        before = simulation.counts.waits

        head.logits(head.hidden_states(ids, ids, hidden, Echo()))
        after = simulation.counts.waits

    assert after == before


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
    """A bad value in each document is reported at once, each with its own document."""
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
