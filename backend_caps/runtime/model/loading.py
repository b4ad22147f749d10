"""From a Hugging Face folder to a decoder that can be called."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import torch

from backend_caps.runtime.model.checkpoint import StoredWeight, open_checkpoint
from backend_caps.runtime.model.config import LlamaConfig
from backend_caps.runtime.model.errors import UnsupportedDtypeError
from backend_caps.runtime.model.llama import LlamaModel
from backend_caps.runtime.model.weights import check_weights, fill_weights

_DTYPES: Mapping[str, torch.dtype] = MappingProxyType(
    {"float32": torch.float32, "bfloat16": torch.bfloat16}
)
_LM_HEAD, _EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


def load_llama(
    folder: str | Path,
    device: torch.device | str,
    *,
    dtype: torch.dtype | None = None,
    num_positions: int | None = None,
    lookahead: int = 0,
) -> LlamaModel:
    """Load a decoder from a folder that `save_pretrained` of transformers wrote.

    Weights of any floating-point dtype are converted to the model's. Tables of old checkpoints
    that the config determines (`rotary_emb.inv_freq`) are left out.

    Sync: copies every weight to the device, and may wait for it. Allocates: the model.

    Args:
        folder: has config.json and safetensors, in one file or in several with an index; and
            generation_config.json where other tokens end a text than config.json says.
        device: where the model is.
        dtype: float32 or bfloat16; by default what the config says, and float32 if it says nothing.
        num_positions: longest context that is computed; by default what the config says.
        lookahead: positions behind it that speculative steps compute, and drop.

    Raises:
        ModelFileMissingError: the folder lacks a file.
        ModelFileUnreadableError: a file is not what it should be.
        UnsupportedModelError: the config describes what this decoder does not compute.
        ModelConfigError: a value of a config is none that its key can have.
        ExceptionGroup: the config has several of the last two.
        UnsupportedDtypeError: the model does not compute in this dtype.
        ModelWeightsError: weights are missing, unexpected, or of another shape or dtype.
    """
    config = LlamaConfig.from_folder(folder)
    chosen = dtype_of(dtype, config)
    with open_checkpoint(Path(folder)) as stored:
        # On the meta device a model has names and shapes, and takes no memory.
        hollow = LlamaModel(config, torch.device("meta"), chosen, num_positions=1)
        check_weights(folder, hollow, stored, set(_redundant(config, stored)))
        context = config.max_position_embeddings if num_positions is None else num_positions
        model = LlamaModel(config, torch.device(device), chosen, context + lookahead)
        fill_weights(model, stored)
    return model


def dtype_of(dtype: torch.dtype | None, config: LlamaConfig) -> torch.dtype:
    """Return what a model computes in: the dtype that is named, else its config's, else float32.

    Raises:
        UnsupportedDtypeError: the model does not compute in this dtype.
    """
    name = config.dtype or "float32" if dtype is None else str(dtype).removeprefix("torch.")
    if name not in _DTYPES:
        supported = tuple(f"torch.{each}" for each in _DTYPES)
        raise UnsupportedDtypeError(dtype=f"torch.{name}", supported=supported)
    return _DTYPES[name]


def _redundant(config: LlamaConfig, stored: Mapping[str, StoredWeight]) -> Iterator[str]:
    """List the weights that say nothing that the others and the config do not say."""
    yield from (name for name in stored if name.endswith(".rotary_emb.inv_freq"))
    if config.tie_word_embeddings and {_LM_HEAD, _EMBEDDING} <= stored.keys():
        head, embedding = stored[_LM_HEAD], stored[_EMBEDDING]
        if torch.equal(head.read(), embedding.read()):
            yield _LM_HEAD
