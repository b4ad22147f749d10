"""What became of a declaration, and what stood in its way.

It is apart from `backend`, and free of pydantic: the scan for plugins runs before pydantic is
imported.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


class Status(Enum):
    """What became of a backend's declaration."""

    OK = "ok"
    """It was read."""
    BROKEN = "broken"
    """It could not be read."""
    CONFLICT = "conflict"
    """Several distributions claim its name."""
    SKIPPED = "skipped"
    """It was left out, for a stated cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What is wrong, as data: a report shows it, a caller reads the code."""

    code: str
    """Stable; listed in docs/reference/problems.md."""
    message: str
    remedy: str
    actual: str | None = field(default=None, compare=False)
    """What is, where that is one value; the message says it too."""
    needed: str | None = field(default=None, compare=False)
    """What was wanted instead."""

    @property
    def is_open(self) -> bool:
        """Whether nobody knows yet: what it is about was not declared, or not said."""
        return self.code.endswith(("-not-checked", "-not-declared"))
