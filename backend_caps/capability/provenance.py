"""Where a value comes from."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Origin(Enum):
    """How a value came to be."""

    DECLARED = "declared"
    """The backend's author stated it."""
    CONDITIONAL = "conditional"
    """The author stated it for a condition, and the condition holds."""
    UNDECIDED = "undecided"
    """A condition cannot be decided yet; the value covers both ways."""
    UNDECLARED = "undeclared"
    """Nobody stated it: the worst value."""
    INHERITED = "inherited"
    """An engine's subclass has it from its base and does not state it again."""
    UNVERIFIED = "unverified"
    """The author stated it, and the evidence that was required is not there: the worst value."""
    FORCED = "forced"
    """A rule forces it, whatever the backends say."""
    OVERRIDDEN = "overridden"
    """The operator took it into their own hands."""
    MISSING = "missing"
    """The backend could not be read: the worst value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The distribution and the line that a declaration stands in."""

    distribution: str | None = None
    version: str | None = None
    declared_at: str | None = None
    """`file:line`."""

    def __str__(self) -> str:
        shipped = " ".join(part for part in (self.distribution, self.version) if part)
        return ", ".join(part for part in (shipped, self.declared_at) if part) or "by hand"


BY_HAND = Source()
"""Of what no distribution ships."""
