"""What keeps a configuration from being measured."""

from __future__ import annotations

from dataclasses import dataclass

from backend_caps.errors import BackendCapsError


@dataclass(eq=False, kw_only=True)
class NotMeasuredError(BackendCapsError):
    """A plan's configuration cannot be run here, so nothing can be counted."""

    problem: str

    @property
    def message(self) -> str:
        """What stopped it, and what to do about that."""
        return f"this configuration cannot be run here, so nothing of it is counted: {self.problem}"


@dataclass(eq=False, kw_only=True)
class StepFailedError(BackendCapsError):
    """A step that was to be measured or recorded failed."""

    problem: str

    @property
    def message(self) -> str:
        """What was raised, and what to do."""
        return (
            f"a step raised {self.problem}. Expected backends that run on this device. Correct the "
            "backend, or name another."
        )
