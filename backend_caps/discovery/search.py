"""Which folders are searched for metadata, and which one is not."""

# ruff: noqa: PTH100, PTH109, PTH116 - importing pathlib costs a fifth of a scan

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from os import PathLike


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """Where to look for metadata, and the `sys.path` to import from."""

    searched: tuple[str, ...]
    imports: tuple[str, ...]
    named: tuple[str, ...] = ()
    """Folders that the caller named; one that is not there is a problem."""
    unsearched: str | None = None
    """The working directory that Python put on the path by itself."""

    @classmethod
    def of_process(cls, working_directory: str | None = None) -> Search:
        """Search `sys.path`, without the working directory that `-m` and `-c` put first on it.

        Metadata planted there would hijack a backend's name. `working_directory` names it
        where it has been taken off `sys.path` already.
        """
        path = _absolute(sys.path)
        first = working_directory or working_directory_of_process()
        if path[:1] == (first,) and not sys.flags.safe_path:
            working_directory, path = first, path[1:]
        return cls(searched=path, imports=path, unsearched=working_directory)

    @classmethod
    def of_folders(cls, folders: Sequence[str | PathLike[str]]) -> Search:
        """Search these folders alone; import from them first, then from `sys.path`."""
        named = _absolute([os.fspath(folder) for folder in folders])
        return cls(searched=named, imports=(*named, *cls.of_process().imports), named=named)

    def absent(self) -> tuple[str, ...]:
        """List the folders that the caller named and that are not there."""
        return tuple(folder for folder in self.named if identity(folder) is None)


def identity(path: str) -> tuple[int, int] | None:
    """Return what tells one file from another, whatever its path; None where there is none."""
    with suppress(OSError, ValueError):
        found = os.stat(path)
        return found.st_dev, found.st_ino
    return None


def _absolute(path: Sequence[str]) -> tuple[str, ...]:
    """Make every entry absolute; the empty one is the working directory."""
    with suppress(FileNotFoundError):  # the working directory may be gone
        return tuple(os.path.abspath(entry) for entry in path)
    return tuple(entry for entry in path if os.path.isabs(entry))  # noqa: PTH117 - as above


def working_directory_of_process() -> str | None:
    """Return the working directory; None where it has been deleted."""
    with suppress(FileNotFoundError):
        return os.getcwd()
    return None
