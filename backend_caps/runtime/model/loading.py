"""From a Hugging Face folder to a decoder that can be called."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import torch
from torch import Tensor

from backend_caps.runtime.model.checkpoint import StoredWeight, open_checkpoint
from backend_caps.runtime.model.config import LlamaConfig
from backend_caps.runtime.model.errors import ModelWeightsError, UnsupportedDtypeError
from backend_caps.runtime.model.llama import LlamaModel

_DTYPES: Mapping[str, torch.dtype] = MappingProxyType(
    {"float32": torch.float32, "bfloat16": torch.bfloat16}
)
_CONVERTED = ("F32", "BF16", "F16", "F64")
"""Dtypes of weights that are the numbers themselves, and are converted."""
_LM_HEAD, _EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


def load_llama(
    folder: str | Path,
    device: torch.device | str,
    *,
    dtype: torch.dtype | None = None,
    num_positions: int | None = None,
) -> LlamaModel:
    """Load a decoder from a folder that `save_pretrained` of transformers wrote.

    Weights of any floating-point dtype are converted to the model's. Tables of old checkpoints
    that the config determines (`rotary_emb.inv_freq`) are left out.

    Sync: copies every weight to the device, and may wait for it. Allocates: the model.

    Args:
        folder: has config.json and safetensors, in one file or in several with an index.
        device: where the model is.
        dtype: float32 or bfloat16; by default what the config says, and float32 if it says nothing.
        num_positions: longest context that is computed; by default what the config says.

    Raises:
        ModelFileMissingError: the folder lacks a file.
        ModelFileUnreadableError: a file is not what it should be.
        UnsupportedModelError: the config describes what this decoder does not compute.
        ModelConfigError: a value of the config is none that its key can have.
        ExceptionGroup: the config has several of the last two.
        UnsupportedDtypeError: the model does not compute in this dtype.
        ModelWeightsError: weights are missing, unexpected, or of another shape or dtype.
    """
    config = LlamaConfig.from_folder(folder)
    chosen = _supported(dtype, config)
    with open_checkpoint(Path(folder)) as stored:
        _check(folder, config, stored)
        model = LlamaModel(config, torch.device(device), chosen, num_positions)
        for name, weight in model.named_weights():
            weight.copy_(stored[name].read())
    return model


def _supported(dtype: torch.dtype | None, config: LlamaConfig) -> torch.dtype:
    name = config.dtype or "float32" if dtype is None else str(dtype).removeprefix("torch.")
    if name not in _DTYPES:
        supported = tuple(f"torch.{each}" for each in _DTYPES)
        raise UnsupportedDtypeError(dtype=f"torch.{name}", supported=supported)
    return _DTYPES[name]


def _check(folder: str | Path, config: LlamaConfig, stored: Mapping[str, StoredWeight]) -> None:
    # On the meta device a model has names and shapes, and takes no memory.
    hollow = LlamaModel(config, torch.device("meta"), torch.float32, num_positions=1)
    expected = dict(hollow.named_weights())
    missing = tuple(name for name in expected if name not in stored)
    surplus = sorted(name for name in stored if name not in expected)
    unexpected = tuple(name for name in surplus if not _is_redundant(name, config, stored))
    unfit = tuple(_unfit(expected, stored))
    if missing or unexpected or unfit:
        raise ModelWeightsError(
            folder=str(folder), missing=missing, unexpected=unexpected, unfit=unfit
        )


def _unfit(expected: Mapping[str, Tensor], stored: Mapping[str, StoredWeight]) -> Iterator[str]:
    for name, weight in expected.items():
        found = stored.get(name)
        if found is None:
            continue
        shape = tuple(weight.shape)
        if found.shape != shape:
            yield f"{name} of shape {found.shape} instead of {shape}"
        elif found.dtype not in _CONVERTED:
            yield f"{name} of dtype {found.dtype} instead of {' or '.join(_CONVERTED)}"


def _is_redundant(name: str, config: LlamaConfig, stored: Mapping[str, StoredWeight]) -> bool:
    """Tell whether a weight says nothing that the others and the config do not say."""
    if name == _LM_HEAD and config.tie_word_embeddings and _EMBEDDING in stored:
        return torch.equal(stored[name].read(), stored[_EMBEDDING].read())
    return name.endswith(".rotary_emb.inv_freq")
