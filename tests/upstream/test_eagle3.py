"""EAGLE3 heads, beside the `speculators` package's own implementation on random weights."""

from __future__ import annotations

import sys
import warnings
import zipfile
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import LlamaConfig as TransformersConfig

from backend_caps.runtime import AttentionLayer
from backend_caps.runtime.model.draft_loading import load_eagle3
from backend_caps.runtime.model.eagle3 import Eagle3Head
from backend_caps.runtime.model.llama import load_llama
from backend_caps.runtime.model.random_models import random_llama

WHEELS = Path(__file__).resolve().parents[2] / ".cache" / "wheels"
VERSION = "0.9.0"


def eagle3(folder: Path) -> Any:
    """Import the package's module of EAGLE3 heads, unpacked to a folder: a head saves its source.

    Raises:
        FileNotFoundError: the wheel is not there; the message has the command that fetches it.
    """
    found = sorted(WHEELS.glob(f"speculators-{VERSION}-*.whl"))
    if not found:
        raise FileNotFoundError(
            f"no wheel of speculators {VERSION} in .cache/wheels. Fetch it: "
            f"python -m pip download --no-deps speculators=={VERSION} -d .cache/wheels"
        )
    with zipfile.ZipFile(found[0]) as wheel:
        wheel.extractall(folder)
    sys.path.append(str(folder))
    training, data = ModuleType("speculators.train"), ModuleType("speculators.train.data")
    training.__path__ = []
    data.BatchType = dict  # type: ignore[attr-defined] # a name for annotations
    sys.modules |= {own.__name__: own for own in (training, data)}
    try:
        with warnings.catch_warnings():
            # It imports parts of torch that warn of others.
            warnings.simplefilter("ignore", DeprecationWarning)
            return import_module("speculators.models.eagle3")
    finally:
        sys.path.remove(str(folder))


pytestmark = [pytest.mark.upstream, pytest.mark.no_cover]

VOCAB_SIZE, DRAFT_VOCAB_SIZE, SIZE, NUM_TOKENS, NUM_STEPS = 96, 64, 64, 24, 3
CASES = [
    pytest.param({}, id="plain"),
    pytest.param({"norm_before_residual": True}, id="norm before residual"),
    pytest.param({"norm_before_fc": True}, id="norm before fc"),
    pytest.param({"fc_norm": True, "norm_before_residual": True}, id="a norm each"),
    pytest.param({"norm_output": True}, id="norm of the output"),
    pytest.param({"draft_vocab_size": VOCAB_SIZE}, id="whole vocabulary"),
    pytest.param({"eagle_aux_hidden_state_layer_ids": [0, 1, 2, 4]}, id="four layers"),
]


class _Chains:
    """Attention of as many chains of drafts as there are tokens, each behind its own token.

    A token of the first step sees those before it. One of a later step sees what the first one of
    its chain saw, and its chain.
    """

    def __init__(self) -> None:
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []

    def attend(self, layer: AttentionLayer, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        size = layer.qk_head_dim
        queries, own_k, own_v = (each.view(len(each), -1, size).movedim(0, 1) for each in (q, k, v))
        self._keys.append(own_k)
        self._values.append(own_v)
        count = q.shape[0]
        later = torch.eye(count, dtype=torch.bool).repeat(1, len(self._keys) - 1)
        seen = torch.cat([torch.ones(count, count).tril().bool(), later], dim=1)
        keys, values = torch.cat(self._keys, dim=1), torch.cat(self._values, dim=1)
        attended = scaled_dot_product_attention(
            queries, keys, values, attn_mask=seen, scale=layer.scaling, enable_gqa=True
        )
        return attended.movedim(1, 0).flatten(1)


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Import the package's module of heads."""
    return eagle3(tmp_path_factory.mktemp("speculators"))


def _write(package: Any, folder: Path, keys: dict[str, Any]) -> tuple[Any, int]:
    """Write a random head as the package does; return it, and how many layers it reads."""
    layer = TransformersConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=SIZE,
        intermediate_size=2 * SIZE,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        rms_norm_eps=1e-5,
    )
    layer._attn_implementation = "eager"  # noqa: SLF001 - as the package asks of it
    config = package.Eagle3SpeculatorConfig(
        transformer_layer_config=layer, **{"draft_vocab_size": DRAFT_VOCAB_SIZE, **keys}
    )
    head = package.Eagle3DraftModel(config)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in head.parameters():
            mean = 1.0 if weight.dim() == 1 else 0.0
            drawn = torch.randn(weight.shape, generator=generator)
            weight.copy_(mean + drawn * (0.2 if weight.dim() == 1 else weight.shape[-1] ** -0.5))
    if config.draft_vocab_size < VOCAB_SIZE:
        known = torch.randperm(VOCAB_SIZE, generator=generator)[:DRAFT_VOCAB_SIZE].sort().values
        table = torch.zeros(VOCAB_SIZE, dtype=torch.bool)
        table[known] = True
        head.load_vocab_mappings(table, known - torch.arange(DRAFT_VOCAB_SIZE))
    head.save_pretrained(folder)
    return head, len(keys.get("eagle_aux_hidden_state_layer_ids", (0, 1, 2)))


def _said_by_package(head: Any, tokens: Tensor, features: Tensor) -> Sequence[Tensor]:
    """Run the package's own forward, and keep the logits of each step: [T, Vd] each."""
    kept: list[Tensor] = []
    head.lm_head.register_forward_hook(lambda _module, _inputs, logits: kept.append(logits[0]))
    head(features[None], tokens[None], torch.zeros_like(tokens)[None], ttt_steps=NUM_STEPS)
    return kept


def _said_here(head: Eagle3Head, tokens: Tensor, features: Tensor) -> Sequence[Tensor]:
    """Draft the same chains: each step reads the next token, and the state before."""
    context, said = _Chains(), []
    hidden, positions = head.fuse(features), 1 + torch.arange(len(tokens))
    for step in range(NUM_STEPS):
        shifted = torch.cat([tokens[step:], tokens.new_zeros(step)])
        hidden = head.hidden_states(shifted, positions + step, hidden, context)
        said.append(head.logits(hidden))
    return said


@pytest.mark.parametrize("keys", CASES)
@torch.no_grad()
def test_heads_score_as_the_speculators_package_does(
    package: Any, keys: dict[str, Any], tmp_path: Path
) -> None:
    """A head that the package wrote gives its logits here, along chains of three drafts."""
    random_llama(tmp_path / "target", vocab_size=VOCAB_SIZE, hidden_size=SIZE, num_layers=8)
    theirs, num_aux = _write(package, tmp_path / "head", keys)
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(VOCAB_SIZE, (NUM_TOKENS,), generator=generator)
    features = torch.randn(NUM_TOKENS, num_aux * SIZE, generator=generator)

    ours = load_eagle3(tmp_path / "head", load_llama(tmp_path / "target", torch.device("cpu")))

    expected = _said_by_package(theirs, tokens, features)
    for own, other in zip(_said_here(ours, tokens, features), expected, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-4)
    if (d2t := theirs.d2t) is not None:
        ids = torch.arange(DRAFT_VOCAB_SIZE)
        assert torch.equal(ours.target_ids(ids), ids + d2t)
