"""What is raised for files that are compared."""

from __future__ import annotations

from dataclasses import dataclass

from backend_caps.errors import BackendCapsError

LOCK_SCHEMA = "backend-caps/lock@1"
"""What this version writes and reads."""


@dataclass(eq=False, kw_only=True)
class LockFileError(BackendCapsError):
    """A lock file is not there, or is none."""

    path: str
    cause: str

    @property
    def message(self) -> str:
        """The file, and why."""
        return (
            f"lock file {self.path!r} cannot be read: {self.cause}. Expected what "
            "`backend-caps lock` writes. Correct the path, or write the file again."
        )


@dataclass(eq=False, kw_only=True)
class LockWriteError(BackendCapsError):
    """A lock file cannot be written; what was there is still there."""

    path: str
    cause: str

    @property
    def message(self) -> str:
        """The file, and why."""
        return (
            f"lock file {self.path!r} cannot be written: {self.cause}. Expected a folder that is "
            "there, with room for it. Name another file with --output."
        )


@dataclass(eq=False, kw_only=True)
class LockSchemaError(BackendCapsError):
    """A lock file was written by another version, or is another document."""

    path: str
    schema: str

    @property
    def message(self) -> str:
        """The file, its schema, and the one that is read."""
        return (
            f"lock file {self.path!r} has the schema {self.schema}; expected {LOCK_SCHEMA!r}. "
            "Use the backend-caps that wrote it, or write it again with this one."
        )
