from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from backend_caps.runtime import AttentionLayer
from backend_caps.runtime.model.draft_loading import load_eagle
from backend_caps.runtime.model.llama import LlamaModel, load_llama
from backend_caps.runtime.model.random_models import random_eagle, random_llama
from backend_caps.simulator import simulate
from tests.runtime.model.eagles import HeadOracle, save_head
from tests.runtime.model.folders import LLAMA3_ROPE, save
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
    head = load_eagle(tmp_path, target)

    logits = head.logits(_hidden())

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
