"""Observers of forwards: called on the host when a forward of a role starts and ends."""

from __future__ import annotations

from typing import Protocol

from backend_caps.capability.kind import Phase, Role
from backend_caps.startup.graph_modes import GraphMode


class ForwardObserver(Protocol):
    """Called on the host around each forward; the work it enqueued may still run."""

    def began(self, role: Role, phase: Phase) -> None:
        """Called when a forward starts; nested forwards are not reported."""

    def ended(self, graph_mode: GraphMode) -> None:
        """Called when the forward has been enqueued, with how it ran."""


class NoForwardObserver:
    """No-op observer."""

    def began(self, role: Role, phase: Phase) -> None:
        """Do nothing."""

    def ended(self, graph_mode: GraphMode) -> None:
        """Do nothing."""
