"""Who wants to know when a step's forwards begin and end: each role has its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from backend_caps.capability.kind import Phase, Role

if TYPE_CHECKING:  # whose package builds on what is told here
    from backend_caps.runtime.graphs.modes import GraphMode


class ForwardObserver(Protocol):
    """Who is told of every forward, on the host: what it has enqueued may still run."""

    def began(self, role: Role, phase: Phase) -> None:
        """Take in that a forward of a role begins; one that runs within another there is not."""

    def ended(self, graph_mode: GraphMode) -> None:
        """Take in that it was enqueued, and how it ran."""


class NoForwardObserver:
    """Nobody wants to know."""

    def began(self, role: Role, phase: Phase) -> None:
        """Let it pass."""

    def ended(self, graph_mode: GraphMode) -> None:
        """Let it pass."""
