"""Weights in a Hugging Face folder: one file of safetensors, or several with an index.

They are compared with what a model needs before any number is read, then copied into it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar, cast

from safetensors import SafetensorError, safe_open
from torch import Tensor

from backend_caps.runtime.model.errors import (
    ModelError,
    missing_file,
    unfit_weights,
    unreadable_file,
)
from backend_caps.runtime.model.layers import Weighted

_Model = TypeVar("_Model", bound=Weighted)
_WHOLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"


class _Slice(Protocol):
    def get_shape(self) -> list[int]: ...
    def get_dtype(self) -> str: ...


class _File(Protocol):
    def keys(self) -> list[str]: ...
    def get_slice(self, name: str, /) -> _Slice: ...
    def get_tensor(self, name: str, /) -> Tensor: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredWeight:
    """One weight of a checkpoint; its numbers are read when they are asked for."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    """The file's word for it: F32, BF16."""
    file: _File

    def read(self) -> Tensor:
        """Read its numbers: a host tensor, whose memory may be the file's."""
        return self.file.get_tensor(self.name)


@contextmanager
def open_checkpoint(folder: Path) -> Iterator[Mapping[str, StoredWeight]]:
    """Open a folder's files, and list the weights in them by name.

    Raises:
        ModelError: the folder has no safetensors, not all that its index names, or a file that is
            not what it should be.
    """
    with ExitStack() as stack:
        weights: dict[str, StoredWeight] = {}
        for path in _paths(folder):
            weights.update(_weights(stack.enter_context(_opened(path))))
        yield weights


def _paths(folder: Path) -> list[Path]:
    if (folder / _WHOLE).is_file():
        return [folder / _WHOLE]
    if not (folder / _INDEX).is_file():
        raise missing_file(folder, f"{_WHOLE} or {_INDEX}")
    names = _shards(folder / _INDEX)
    for name in names:
        if not (folder / name).is_file():
            raise missing_file(folder, f"{name}, which {_INDEX} names,")
    return [folder / name for name in names]


def _shards(index: Path) -> list[str]:
    """List the files that an index names, which stand beside it and nowhere else."""
    try:
        document = json.loads(index.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise _unreadable(index, str(error)) from error
    weight_map = document.get("weight_map") if isinstance(document, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise _unreadable(index, "it has no weight_map")
    for name in weight_map.values():
        if not isinstance(name, str) or Path(name).name != name:
            raise _unreadable(index, f"its weight_map names {name!r}, which is no file beside it")
    return sorted(set(weight_map.values()))


def _unreadable(index: Path, reason: str) -> ModelError:
    expected = "a JSON object whose weight_map names a file for each weight"
    return unreadable_file(index, expected, reason)


def _opened(path: Path) -> AbstractContextManager[_File]:
    try:
        return cast("AbstractContextManager[_File]", safe_open(path, framework="pt", device="cpu"))
    except (SafetensorError, OSError) as error:
        raise unreadable_file(path, "a file of safetensors", error) from error


def _weights(file: _File) -> Iterator[tuple[str, StoredWeight]]:
    for name in file.keys():  # noqa: SIM118 - the file is no mapping
        stored = file.get_slice(name)
        shape, dtype = tuple(stored.get_shape()), stored.get_dtype()
        yield name, StoredWeight(name=name, shape=shape, dtype=dtype, file=file)


_CONVERTED = ("F32", "BF16", "F16", "F64")
"""Dtypes of weights that are the numbers themselves, and are converted."""
_INTEGERS = ("I64", "I32")
"""Dtypes of tables of token ids."""


def check_weights(
    folder: str | Path,
    model: Weighted,
    stored: Mapping[str, StoredWeight],
    redundant: Collection[str] = (),
) -> None:
    """Compare a checkpoint with what a model needs of it; no number is read.

    Tables of old checkpoints that the config determines (`rotary_emb.inv_freq`) are left out.

    Args:
        folder: where the checkpoint is, for the error.
        model: may be on the meta device, where it takes no memory.
        stored: the checkpoint.
        redundant: weights that may be there, and say nothing new.

    Raises:
        ModelError: `model-weights`: weights are missing, unexpected, or of another shape or dtype.
    """
    expected = dict(model.named_weights())
    missing = [name for name in expected if name not in stored]
    others = sorted(stored.keys() - expected.keys() - {*redundant})
    unexpected = [name for name in others if not name.endswith(".rotary_emb.inv_freq")]
    unfit = [*_unfit(expected, stored)]
    if missing or unexpected or unfit:
        raise unfit_weights(folder, missing=missing, unexpected=unexpected, unfit=unfit)


def fill_weights(model: _Model, stored: Mapping[str, StoredWeight]) -> _Model:
    """Copy a checkpoint that was checked into a model, converted to its dtype, and return that.

    Sync: may wait for the device. Keeps: nothing; all are copied from.
    """
    for name, weight in model.named_weights():
        weight.copy_(stored[name].read())
    return model


def _unfit(expected: Mapping[str, Tensor], stored: Mapping[str, StoredWeight]) -> Iterator[str]:
    for name, weight in expected.items():
        shape, taken = tuple(weight.shape), _CONVERTED if weight.is_floating_point() else _INTEGERS
        if (found := stored.get(name)) is None:
            continue
        if found.shape != shape:
            yield f"{name} of shape {found.shape} instead of {shape}"
        elif found.dtype not in taken:
            yield f"{name} of dtype {found.dtype} instead of {' or '.join(taken)}"
