"""A backend as it was found: its declaration, or what stood in the way of one."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from backend_caps.capability.declaration import Declaration
from backend_caps.capability.provenance import Source


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """One claim to a backend's name."""

    name: str
    status: Status
    source: Source
    declaration: Declaration | None = None
    """None unless `status` is `OK`."""
    problems: tuple[Problem, ...] = ()
