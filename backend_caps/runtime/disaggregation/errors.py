"""What a caller can get wrong about engines that share the work on a request."""

from __future__ import annotations

from dataclasses import dataclass

from backend_caps.errors import BackendCapsError


@dataclass(eq=False, kw_only=True)
class DisaggregationModeError(BackendCapsError):
    """An engine was asked for what engines of another mode do."""

    asked: str
    """The method that was called."""
    mode: str
    """The engine's."""
    expected: str
    """The mode that has the method."""

    @property
    def message(self) -> str:
        """What was asked of which engine, and whom to ask."""
        return (
            f"{self.asked} was asked of an engine of --disaggregation-mode {self.mode}; one of "
            f"mode {self.expected} was expected. Ask such an engine, or resolve this one's plan "
            f"with --disaggregation-mode {self.expected}."
        )


@dataclass(eq=False, kw_only=True)
class HandoverMisfitError(BackendCapsError):
    """A handover is of another model, or of other shapes, than the engine that it was given to."""

    problems: tuple[str, ...]

    @property
    def message(self) -> str:
        """Every misfit, and what to do."""
        return (
            f"the handover does not fit this engine: {'; '.join(self.problems)}. The states of "
            f"the same models were expected, in the same dtypes. Make both engines from the same "
            f"folders, with the same --kv-cache-dtype and speculative flags."
        )
