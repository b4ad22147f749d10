"""What was chosen where a flag says `auto`, and why nothing else was: values."""

from __future__ import annotations

from dataclasses import dataclass, replace

from backend_caps.capability.provenance import BY_HAND, Source
from backend_caps.capability.status import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A backend, tried in a flag's place."""

    name: str
    source: Source = BY_HAND
    priority: int = 0
    """What it declares for this server; of several uses, the least."""
    reasons: tuple[Problem, ...] = ()
    """Everything that speaks against it; none: it fits."""
    unchecked: tuple[Problem, ...] = ()
    """What nobody knows. Under the policy `strict` it is among the reasons."""
    host_seq_lens: str | None = None
    """What the whole server needs with it; None where it could not be tried."""
    costs: str = ""
    """What that does on this server, or why it does nothing."""

    @property
    def fits(self) -> bool:
        """Whether nothing speaks against it."""
        return not self.reasons

    @property
    def sort_key(self) -> tuple[bool, int, str]:
        """Order candidates: those that fit, then the higher priority, then the name."""
        return (not self.fits, -self.priority, self.name)

    def under_strict(self) -> Candidate:
        """Count what nobody knows as a reason."""
        return replace(self, reasons=(*self.reasons, *self.unchecked), unchecked=())


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One flag that says `auto`."""

    flag: str
    """In its command-line spelling."""
    candidates: tuple[Candidate, ...]
    """Those that fit, best first; then the others, in the order that they would have."""
    unknown_facts: tuple[str, ...] = ()
    """The facts that nothing could be checked against."""

    @property
    def fitting(self) -> tuple[Candidate, ...]:
        """The candidates that nothing speaks against, best first."""
        return tuple(each for each in self.candidates if each.fits)

    @property
    def rejected(self) -> tuple[Candidate, ...]:
        """The candidates that something speaks against."""
        return tuple(each for each in self.candidates if not each.fits)

    @property
    def chosen(self) -> Candidate | None:
        """The best that fits; None where nothing does."""
        return next(iter(self.fitting), None)

    @property
    def tied(self) -> tuple[str, ...]:
        """Name those of the same priority, before which the chosen one goes by its name alone."""
        if self.chosen is None:
            return ()
        _, *others = self.fitting
        return tuple(each.name for each in others if each.priority == self.chosen.priority)

    def __str__(self) -> str:
        fit = f"{len(self.fitting)} of {len(self.candidates)} installed backends fit"
        if self.chosen is None:
            return f"{self.flag} auto finds no backend ({fit})"
        told = [f"priority {self.chosen.priority}", fit]
        if self.tied:
            told.append(f"by name before {', '.join(self.tied)}, of the same priority")
        return f"{self.flag} auto is {self.chosen.name} ({'; '.join(told)})"
