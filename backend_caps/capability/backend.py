"""A backend as it was found: its declaration, or what stood in the way of one."""

from __future__ import annotations

from dataclasses import dataclass

from backend_caps.capability.declaration import Declaration
from backend_caps.capability.provenance import Source
from backend_caps.capability.status import Problem, Status

__all__ = ["Backend", "Problem", "Status"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """One claim to a backend's name."""

    name: str
    status: Status
    source: Source
    declaration: Declaration | None = None
    """None unless `status` is `OK`."""
    problems: tuple[Problem, ...] = ()
