"""What can be wrong with a folder that a model or a draft is loaded from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from backend_caps.errors import BackendCapsError

_SHOWN = 8
"""Names that are listed before the rest is counted; the fields have them all."""


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"


@dataclass(eq=False, kw_only=True)
class ModelFileMissingError(BackendCapsError):
    """A folder lacks a file that a model consists of."""

    folder: str
    expected: str
    present: tuple[str, ...] | None
    """The folder's files; None where there is no such folder."""

    @classmethod
    def from_folder(cls, folder: Path, expected: str) -> ModelFileMissingError:
        """Say what is there instead."""
        present = tuple(sorted(p.name for p in folder.iterdir())) if folder.is_dir() else None
        return cls(folder=str(folder), expected=expected, present=present)

    @property
    def message(self) -> str:
        """The folder, what it lacks, and what it has."""
        return (
            f"{self.expected} was expected in {self.folder!r}, {self._found}. "
            f"Name a folder that save_pretrained of transformers wrote."
        )

    @property
    def _found(self) -> str:
        if self.present is None:
            return "which is no folder"
        return f"which has {_listed(self.present) or 'no files'}"


@dataclass(eq=False, kw_only=True)
class ModelFileUnreadableError(BackendCapsError):
    """A model's file is there, and cannot be read as what it is."""

    path: str
    expected: str
    reason: str

    @property
    def message(self) -> str:
        """The file, what it should be, and the reader's own words."""
        return (
            f"{self.path!r} cannot be read: {self.reason}; {self.expected} was expected. "
            f"Download or save the model anew."
        )


@dataclass(eq=False, kw_only=True)
class ModelConfigError(BackendCapsError):
    """A value in a model's config.json is none that its key can have."""

    path: str
    key: str
    value: object
    expected: str

    @property
    def message(self) -> str:
        """The key with its value, what was expected, and where to correct it."""
        return (
            f"{self.key} is {self.value!r} in {self.path!r}; {self.expected} was expected. "
            f"Correct it there, or download the model anew."
        )


@dataclass(eq=False, kw_only=True)
class UnsupportedModelError(BackendCapsError):
    """A model's config.json asks for what this decoder does not compute."""

    path: str
    key: str
    value: object
    supported: str

    @property
    def message(self) -> str:
        """The key with its value, what this decoder computes, and what to do."""
        return (
            f"{self.key} is {self.value!r} in {self.path!r}; this decoder computes "
            f"{self.supported}. Name the folder of such a model."
        )


@dataclass(eq=False, kw_only=True)
class ModelWeightsError(BackendCapsError):
    """The weights in a folder are not those that its config.json describes."""

    folder: str
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    unfit: tuple[str, ...] = ()

    @property
    def message(self) -> str:
        """The weights that are missing, unexpected or of another shape or dtype."""
        kinds = {"missing": self.missing, "unexpected": self.unexpected, "unfit": self.unfit}
        faults = "; ".join(f"{kind}: {_listed(names)}" for kind, names in kinds.items() if names)
        return (
            f"the weights in {self.folder!r} do not fit its config.json: {faults}. Exactly the "
            f"weights of that config were expected. Take both from the same model."
        )


@dataclass(eq=False, kw_only=True)
class UnsupportedDtypeError(BackendCapsError):
    """A model is asked for in a dtype that it does not compute in."""

    dtype: str
    supported: tuple[str, ...]

    @property
    def message(self) -> str:
        """The dtype, the ones there are, and how to name one."""
        return (
            f"dtype is {self.dtype}; {' or '.join(self.supported)} was expected. "
            f"Pass dtype={self.supported[0]} to load_llama: other weights are converted."
        )


@dataclass(eq=False, kw_only=True)
class DraftMismatchError(BackendCapsError):
    """A draft model has another size than its target where both have to agree."""

    folder: str
    key: str
    value: int
    expected: int
    """The target's."""

    @property
    def message(self) -> str:
        """Both sizes, and what to do."""
        return (
            f"{self.key} is {self.value} in the draft model {self.folder!r}; the target's "
            f"{self.expected} was expected. Name a draft that was made for this target."
        )


@dataclass(eq=False, kw_only=True)
class HeadKindError(BackendCapsError):
    """A folder holds a draft head of another kind than the algorithm drafts with."""

    folder: str
    found: str
    """The kind that the weights are of: `EAGLE` or `EAGLE3`."""
    evidence: str
    """What of the weights shows it."""
    expected: str
    """The algorithm."""

    @property
    def message(self) -> str:
        """Both kinds, how the found one shows, and what to do."""
        return (
            f"the weights in {self.folder!r} are those of an {self.found} head: {self.evidence}; "
            f"an {self.expected} head was expected. Run it with --speculative-algorithm "
            f"{self.found}, or name another head."
        )


@dataclass(eq=False, kw_only=True)
class NoHeadError(BackendCapsError):
    """A folder that is to hold a draft head holds another model."""

    folder: str
    missing: str
    """The weight that every head has."""

    @property
    def message(self) -> str:
        """What is missing, and what such a folder may be good for."""
        return (
            f"the weights in {self.folder!r} are those of no draft head: {self.missing} is not "
            f"among them; an EAGLE or EAGLE3 head, made for the target, was expected. Name such a "
            f"head, or draft with this model by --speculative-algorithm STANDALONE."
        )


@dataclass(eq=False, kw_only=True)
class DraftLayersError(BackendCapsError):
    """A draft was asked for with layers that its target does not have."""

    num_layers: int
    target_folder: str
    available: int

    @property
    def message(self) -> str:
        """How many were asked for, and how many there are."""
        return (
            f"num_layers is {self.num_layers}; 1 to {self.available} was expected, as "
            f"{self.target_folder!r} has {self.available}. Ask for fewer layers, or for one."
        )
