"""What can be wrong with a folder that a model or a draft is loaded from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from backend_caps.errors import CodedError

_SHOWN = 8
"""Names that are listed before the rest is counted."""


@dataclass(eq=False)
class ModelError(CodedError):
    """A model's folder cannot be used; `code` names the cause."""

    codes: ClassVar[Mapping[str, str]] = {
        "draft-layers": "A draft is asked for with layers that its target does not have.",
        "draft-mismatch": "A draft has another size than its target where both have to agree.",
        "head-kind": "A folder holds a head of another kind than the algorithm drafts with.",
        "model-config": "A value in a model's config.json is none that its key can have.",
        "model-file-missing": "A folder lacks a file that a model consists of.",
        "model-file-unreadable": "A model's file cannot be read as what it is.",
        "model-weights": "The weights in a folder are not those of its config.json.",
        "no-head": "A folder that is to hold a draft head holds another model.",
        "unsupported-dtype": "A model is asked for in a dtype that it does not compute in.",
        "unsupported-model": "A config.json asks for what this decoder does not compute.",
    }


def missing_file(folder: Path, expected: str) -> ModelError:
    """Make the error of a file that a folder lacks; it lists what is there."""
    found = "which is no folder"
    if folder.is_dir():
        found = f"which has {_listed(sorted(p.name for p in folder.iterdir())) or 'no files'}"
    return ModelError(
        "model-file-missing",
        f"{expected} was expected in {str(folder)!r}, {found}. "
        f"Name a folder that save_pretrained of transformers wrote.",
    )


def unreadable_file(path: Path, expected: str, reason: object) -> ModelError:
    """Make the error of a file that is there, with the reader's own words."""
    return ModelError(
        "model-file-unreadable",
        f"{str(path)!r} cannot be read: {reason}; {expected} was expected. "
        f"Download or save the model anew.",
    )


def config_value(path: Path, key: str, value: object, expected: str) -> ModelError:
    """Make the error of a key whose value is none that it can have."""
    return ModelError(
        "model-config",
        f"{key} is {value!r} in {str(path)!r}; {expected} was expected. "
        f"Correct it there, or download the model anew.",
    )


def unsupported_value(path: str, key: str, value: object, supported: str) -> ModelError:
    """Make the error of a key that asks for what this decoder does not compute."""
    return ModelError(
        "unsupported-model",
        f"{key} is {value!r} in {path!r}; this decoder computes {supported}. "
        f"Name the folder of such a model.",
    )


def unfit_weights(
    folder: str | Path,
    *,
    missing: Sequence[str] = (),
    unexpected: Sequence[str] = (),
    unfit: Sequence[str] = (),
) -> ModelError:
    """Make the error of weights that are missing, unexpected, or of another shape or dtype."""
    kinds = {"missing": missing, "unexpected": unexpected, "unfit": unfit}
    faults = "; ".join(f"{kind}: {_listed(names)}" for kind, names in kinds.items() if names)
    return ModelError(
        "model-weights",
        f"the weights in {str(folder)!r} do not fit its config.json: {faults}. Exactly the "
        f"weights of that config were expected. Take both from the same model.",
    )


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"
