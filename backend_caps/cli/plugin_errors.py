"""What is raised for a plugin that cannot be written as it was asked for."""

from __future__ import annotations

from dataclasses import dataclass

from backend_caps.errors import BackendCapsError


@dataclass(eq=False, kw_only=True)
class PluginNameError(BackendCapsError):
    """A new plugin cannot have the name that was given."""

    name: str
    problem: str
    expected: str
    meant: str | None = None
    """A name near it that would do."""

    @property
    def message(self) -> str:
        """The name, what is wrong with it, and one that would do."""
        remedy = "Choose another." if self.meant is None else f"Write {self.meant!r}."
        return (
            f"no plugin can be named {self.name!r}: {self.problem}; {self.expected} was expected. "
            f"{remedy}"
        )


@dataclass(eq=False, kw_only=True)
class PluginFolderError(BackendCapsError):
    """The folder that a new plugin was to be written into cannot be used."""

    folder: str
    problem: str

    @property
    def message(self) -> str:
        """The folder, and why it cannot be used."""
        return (
            f"folder {self.folder!r} cannot take a new plugin: {self.problem}; a folder with room "
            f"that is empty but for .git, or none, was expected. Name another with --into."
        )
