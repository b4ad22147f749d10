"""What keeps steps from being recorded."""

from __future__ import annotations

from dataclasses import dataclass

from backend_caps.errors import BackendCapsError


@dataclass(eq=False, kw_only=True)
class TooManyStepsError(BackendCapsError):
    """More decode steps than the longest request of the server has for sure."""

    asked: int
    most: int
    context_length: int

    @property
    def message(self) -> str:
        """How many there are, and what to do."""
        return (
            f"{self.asked} decode steps cannot be recorded: a context of {self.context_length} "
            f"tokens has {self.most} for sure, where every draft is accepted. Expected no more "
            "than that. Ask for fewer by --steps, or give the server a longer context."
        )


@dataclass(eq=False, kw_only=True)
class NoTimelineError(BackendCapsError):
    """Of a device there is nothing to draw."""

    device: str
    has_streams: bool

    @property
    def message(self) -> str:
        """Why, and where there is."""
        why = "its records are not read here" if self.has_streams else "it has no streams"
        return (
            f"there is no timeline of device {self.device!r}: {why}. Expected 'sim' or 'cuda'. "
            "Take --device sim, which simulates streams on the CPU."
        )
