"""A path entry, folder or archive, as a list of metadata folders and their files."""

# ruff: noqa: PTH119, PTH208 - pathlib takes longer than what the scan does with a file

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

_CHUNK_BYTES = 1 << 16
_ENDINGS = (".dist-info", ".egg-info")


class Place(Protocol):
    """What the scan asks of a path entry."""

    @property
    def root(self) -> str:
        """The path entry."""
        ...

    def folders(self) -> list[str]:
        """List the metadata folders at its top."""
        ...

    def read(self, folder: str, file: str) -> bytes | None:
        """Read a file of a metadata folder; None where there is none.

        Raises:
            OSError: it is there, and cannot be read.
        """
        ...


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder, or an egg that is one."""

    root: str
    names: tuple[str, ...]

    def folders(self) -> list[str]:
        """List the metadata folders at its top."""
        return _metadata(self.root, self.names)

    def read(self, folder: str, file: str) -> bytes | None:
        """Read a file of a metadata folder; None where there is none."""
        try:
            descriptor = os.open(f"{self.root}/{folder}/{file}", os.O_RDONLY)
        except (FileNotFoundError, NotADirectoryError):
            return None
        try:
            return b"".join(iter(partial(os.read, descriptor, _CHUNK_BYTES), b""))
        finally:
            os.close(descriptor)


@dataclass(frozen=True, slots=True)
class Archive:
    """A zip: an egg, a wheel, or any other that Python can import from."""

    root: str
    names: tuple[str, ...]

    def folders(self) -> list[str]:
        """List the metadata folders at its top."""
        return _metadata(self.root, dict.fromkeys(name.split("/", 1)[0] for name in self.names))

    def read(self, folder: str, file: str) -> bytes | None:
        """Read a file of a metadata folder; None where there is none."""
        try:
            with zipfile.ZipFile(self.root) as archive:
                return archive.read(f"{folder}/{file}")
        except KeyError:
            return None
        except (zipfile.BadZipFile, zlib.error, RuntimeError) as error:
            raise OSError(str(error)) from error


def place_at(root: str) -> Place | None:
    """Open a path entry; None where metadata cannot be."""
    try:
        return Folder(root, tuple(os.listdir(root)))
    except NotADirectoryError:
        return _archive(root)
    except OSError:
        return None


def _archive(root: str) -> Archive | None:
    try:
        with zipfile.ZipFile(root) as archive:
            return Archive(root, tuple(archive.namelist()))
    except (zipfile.BadZipFile, OSError):
        return None


def _metadata(root: str, names: Iterable[str]) -> list[str]:
    """Pick the metadata folders: of an egg, `EGG-INFO`."""
    egg = os.path.basename(root).lower().endswith(".egg")
    return sorted(
        name
        for name in names
        if (low := name.lower()).endswith(_ENDINGS) or (egg and low == "egg-info")
    )
