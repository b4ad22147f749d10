"""The weights in a Hugging Face folder: one file of safetensors, or several with an index."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

from safetensors import SafetensorError, safe_open
from torch import Tensor

from backend_caps.runtime.model.errors import ModelFileMissingError, ModelFileUnreadableError

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
        ModelFileMissingError: the folder has no safetensors, or not all that its index names.
        ModelFileUnreadableError: a file is not what it should be.
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
        raise ModelFileMissingError.from_folder(folder, f"{_WHOLE} or {_INDEX}")
    names = _shards(folder / _INDEX)
    for name in names:
        if not (folder / name).is_file():
            raise ModelFileMissingError.from_folder(folder, f"{name}, which {_INDEX} names,")
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


def _unreadable(index: Path, reason: str) -> ModelFileUnreadableError:
    expected = "a JSON object whose weight_map names a file for each weight"
    return ModelFileUnreadableError(path=str(index), expected=expected, reason=reason)


def _opened(path: Path) -> AbstractContextManager[_File]:
    try:
        return cast("AbstractContextManager[_File]", safe_open(path, framework="pt", device="cpu"))
    except (SafetensorError, OSError) as error:
        raise ModelFileUnreadableError(
            path=str(path), expected="a file of safetensors", reason=str(error)
        ) from error


def _weights(file: _File) -> Iterator[tuple[str, StoredWeight]]:
    for name in file.keys():  # noqa: SIM118 - the file is no mapping
        stored = file.get_slice(name)
        shape, dtype = tuple(stored.get_shape()), stored.get_dtype()
        yield name, StoredWeight(name=name, shape=shape, dtype=dtype, file=file)
