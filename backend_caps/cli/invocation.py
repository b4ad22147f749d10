"""What a process was started with, past what click reads."""

from __future__ import annotations

from dataclasses import dataclass

from backend_caps.discovery.loading import Loading


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocation:
    """The server flags after `--`, and the plugins that are being loaded meanwhile."""

    server_flags: tuple[str, ...] = ()
    loading: Loading | None = None
    """Of the environment's plugins; None where they were not asked for."""
