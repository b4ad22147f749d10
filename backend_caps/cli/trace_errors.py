"""What is raised for the files of a trace."""

from __future__ import annotations

from dataclasses import dataclass

from backend_caps.errors import BackendCapsError


@dataclass(eq=False, kw_only=True)
class TraceWriteError(BackendCapsError):
    """A file of a trace cannot be written."""

    path: str
    cause: str
    option: str

    @property
    def message(self) -> str:
        """The file, and why."""
        return (
            f"{self.path!r} cannot be written: {self.cause}. Expected a folder that is there, with "
            f"room for it. Name another file with {self.option}."
        )
