"""What can be wrong with a draft model, beside what can be with any."""

from __future__ import annotations

from dataclasses import dataclass

from backend_caps.errors import BackendCapsError


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
