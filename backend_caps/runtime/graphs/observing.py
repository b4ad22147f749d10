"""Who wants to know how far the captures of an engine have come."""

from __future__ import annotations

from typing import Protocol

from backend_caps.startup.graph_modes import GraphMode


class CaptureObserver(Protocol):
    """Who is told of captures, which take seconds on a device."""

    def begin(self, num_sizes: int) -> None:
        """Take in how many sizes will be captured, of all modes together."""

    def captured(self, mode: GraphMode, num_tokens: int) -> None:
        """Take in that a size was captured, by the tokens that it holds."""


class NoCaptureObserver:
    """Nobody wants to know."""

    def begin(self, num_sizes: int) -> None:
        """Let it pass."""

    def captured(self, mode: GraphMode, num_tokens: int) -> None:
        """Let it pass."""
