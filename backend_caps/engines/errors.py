"""What is raised where nothing of an engine can be read."""

from __future__ import annotations

from dataclasses import dataclass

from backend_caps.errors import BackendCapsError


@dataclass(eq=False, kw_only=True)
class UnknownEngineError(BackendCapsError):
    """An engine was named that there is no reader for."""

    name: str
    known: tuple[str, ...]

    @property
    def message(self) -> str:
        """What was asked for, and what there is."""
        return (
            f"no reader knows the engine {self.name!r}; known: {', '.join(self.known)}. "
            "Name one of them."
        )


@dataclass(eq=False, kw_only=True)
class EngineNotInstalledError(BackendCapsError):
    """The installed engine was asked for, and there is none."""

    engine: str

    @property
    def message(self) -> str:
        """What is missing, and the other way."""
        return (
            f"no distribution {self.engine!r} is installed here; "
            f"expected a folder {self.engine}/ on the path of imports. "
            f"Install it, or name a folder or a wheel: --source PATH."
        )


@dataclass(eq=False, kw_only=True)
class EngineSourceError(BackendCapsError):
    """A source was named that holds no such engine, or cannot be opened."""

    engine: str
    source: str
    problem: str

    @property
    def message(self) -> str:
        """What is wrong with the source, and what one is."""
        return (
            f"{self.source} {self.problem}; expected a wheel of {self.engine}, or a folder with "
            f"{self.engine}/ in it. Name another with --source."
        )
