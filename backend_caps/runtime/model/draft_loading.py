"""From a Hugging Face folder to a draft model beside its target."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

import torch

from backend_caps.resolution.errors import raise_all
from backend_caps.runtime.model.checkpoint import StoredWeight, open_checkpoint
from backend_caps.runtime.model.config import LlamaConfig
from backend_caps.runtime.model.draft import StandaloneDraft
from backend_caps.runtime.model.draft_errors import (
    DraftMismatchError,
    NoHeadError,
    UnsupportedHeadError,
)
from backend_caps.runtime.model.eagle import EagleConfig, EagleHead
from backend_caps.runtime.model.llama import LlamaModel
from backend_caps.runtime.model.loading import load_llama
from backend_caps.runtime.model.weights import check_weights, fill_weights

_PREFIX = "model."
_SHARED = ("embed_tokens.weight", "lm_head.weight")
_FC = "fc.weight"
_BIAS = "fc.bias"


def load_standalone(
    folder: str | Path, target: LlamaModel, *, num_positions: int | None = None
) -> StandaloneDraft:
    """Load a small model that drafts for a target; dtype and device are the target's.

    Sync: copies every weight to the device, and may wait for it. Allocates: the model.

    Args:
        folder: as `load_llama` takes it.
        target: knows as many tokens.
        num_positions: longest context that is computed; by default what the config says.

    Raises:
        DraftMismatchError: its vocabulary has another size than the target's.
        BackendCapsError: the folder cannot be loaded; see `load_llama`.
    """
    config = LlamaConfig.from_folder(folder)
    sizes = {"vocab_size": (config.vocab_size, target.config.vocab_size)}
    _check_sizes(folder, sizes)
    model = load_llama(folder, target.device, dtype=target.dtype, num_positions=num_positions)
    return StandaloneDraft(model)


def load_eagle(
    folder: str | Path, target: LlamaModel, *, num_positions: int | None = None
) -> EagleHead:
    """Load a head of EAGLE 1 or 2, which shares the target's embedding and LM head.

    Dtype and device are the target's. Weights are named with or without a leading `model.`; an
    embedding and an LM head that are stored too are left out.

    Sync: copies every weight to the device, and may wait for it. Allocates: the head.

    Args:
        folder: has config.json and safetensors, in one file or in several with an index.
        target: the head was made for it.
        num_positions: longest context that is computed; by default what the config says.

    Raises:
        ModelFileMissingError: the folder lacks a file.
        ModelFileUnreadableError: a file is not what it should be.
        NoHeadError: the folder holds no draft head.
        UnsupportedHeadError: the head is one of EAGLE3.
        UnsupportedModelError: the config describes what this decoder does not compute.
        ModelConfigError: a value of a config is none that its key can have.
        DraftMismatchError: its hidden state or vocabulary has another size than the target's.
        ExceptionGroup: there are several of one of the last three.
        ModelWeightsError: weights are missing, unexpected, or of another shape or dtype.
    """
    with open_checkpoint(Path(folder)) as checkpoint:
        stored = _unprefixed(checkpoint)
        _refuse_others(folder, stored)
        config = EagleConfig.from_folder(folder)
        sizes = {
            "hidden_size": (config.hidden_size, target.config.hidden_size),
            "vocab_size": (config.vocab_size, target.config.vocab_size),
        }
        _check_sizes(folder, sizes)
        has_bias = _BIAS in stored if config.bias is None else config.bias
        hollow = _head(config, target, torch.device("meta"), has_bias=has_bias, num_positions=1)
        check_weights(folder, hollow, stored, set(_redundant(stored)))
        head = _head(config, target, target.device, has_bias=has_bias, num_positions=num_positions)
        fill_weights(head, stored)
    return head


def _head(
    config: LlamaConfig,
    target: LlamaModel,
    device: torch.device,
    *,
    has_bias: bool,
    num_positions: int | None,
) -> EagleHead:
    return EagleHead(
        config,
        target.embedding,
        target.lm_head,
        device,
        target.dtype,
        has_bias=has_bias,
        num_positions=num_positions,
    )


def _unprefixed(stored: Mapping[str, StoredWeight]) -> dict[str, StoredWeight]:
    """Name weights without their leading `model.`, except where another one has that name."""
    named: dict[str, StoredWeight] = {}
    for name, weight in stored.items():
        short = name.removeprefix(_PREFIX)
        named[name if short in stored else short] = weight
    return named


def _refuse_others(folder: str | Path, stored: Collection[str]) -> None:
    for name in sorted(stored):
        if name in {"d2t", "t2d"} or name.startswith("midlayer."):
            raise UnsupportedHeadError(folder=str(folder), kind="EAGLE3", found=name)
    if _FC not in stored:
        raise NoHeadError(folder=str(folder), missing=_FC)


def _check_sizes(folder: str | Path, sizes: Mapping[str, tuple[int, int]]) -> None:
    """Compare each of the draft's sizes with the target's."""
    faults = [
        DraftMismatchError(folder=str(folder), key=key, value=value, expected=expected)
        for key, (value, expected) in sizes.items()
        if value != expected
    ]
    raise_all(f"draft model {str(folder)!r}", faults)


def _redundant(stored: Iterable[str]) -> Iterator[str]:
    """List the weights that are the target's own, or tables that the config determines."""
    yield from _SHARED
    yield from (name for name in stored if name.endswith(".rotary_emb.inv_freq"))
