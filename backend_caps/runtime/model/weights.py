"""From the weights of a checkpoint to those of a model, or of a part of one."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from torch import Tensor

from backend_caps.runtime.model.checkpoint import StoredWeight
from backend_caps.runtime.model.errors import ModelWeightsError
from backend_caps.runtime.model.linear import Weighted

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

    Args:
        folder: where the checkpoint is, for the error.
        model: may be on the meta device, where it takes no memory.
        stored: the checkpoint.
        redundant: weights that may be there, and say nothing new.

    Raises:
        ModelWeightsError: weights are missing, unexpected, or of another shape or dtype.
    """
    expected = dict(model.named_weights())
    missing = tuple(name for name in expected if name not in stored)
    unexpected = tuple(sorted(stored.keys() - expected.keys() - {*redundant}))
    unfit = tuple(_unfit(expected, stored))
    if missing or unexpected or unfit:
        raise ModelWeightsError(
            folder=str(folder), missing=missing, unexpected=unexpected, unfit=unfit
        )


def fill_weights(model: Weighted, stored: Mapping[str, StoredWeight]) -> None:
    """Copy a checkpoint that was checked into a model, converted to its dtype.

    Sync: may wait for the device. Keeps: nothing; all are copied from.
    """
    for name, weight in model.named_weights():
        weight.copy_(stored[name].read())


def _unfit(expected: Mapping[str, Tensor], stored: Mapping[str, StoredWeight]) -> Iterator[str]:
    for name, weight in expected.items():
        found = stored.get(name)
        if found is None:
            continue
        shape = tuple(weight.shape)
        if found.shape != shape:
            yield f"{name} of shape {found.shape} instead of {shape}"
            continue
        taken = _CONVERTED if weight.is_floating_point() else _INTEGERS
        if found.dtype not in taken:
            yield f"{name} of dtype {found.dtype} instead of {' or '.join(taken)}"
