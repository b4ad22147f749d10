"""What a process was started with, past what click reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from backend_caps.discovery.loading import Loading

if TYPE_CHECKING:
    from backend_caps.supervisor import Log


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocation:
    """The server flags after `--`, and what was begun before."""

    server_flags: tuple[str, ...] = ()
    loading: Loading | None = None
    """Of the environment's plugins; None where they were not asked for."""
    log: Log | None = None
    """What a process before this one left, of the same command; None where nobody waits for it."""
