"""A path entry, folder or archive, as a list of metadata folders and their files.

Anybody may have put anything under a name that discovery reads. `open_regular` and `read_regular`
are the one way to such a file: they read regular files alone, up to a size, and never wait.
"""

# ruff: noqa: PTH119, PTH208 - pathlib takes longer than what the scan does with a file

from __future__ import annotations

import errno
import os
import stat
import zipfile
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from io import FileIO
from typing import IO, Protocol

LARGEST_BYTES = 5 * 10**6
"""The largest file of metadata that is read, as of the engines' sources."""
_CHUNK_BYTES = 1 << 16
_NOT_REGULAR = "it is no file, nor a link to one"
BOUNDED_METHODS = frozenset({zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED})
"""Of the other methods zipfile unpacks as much as there is, however little is asked for."""
_ENDINGS = (".dist-info", ".egg-info")


def open_regular(path: str) -> FileIO:
    """Open a regular file, or a link to one, to be read.

    Raises:
        OSError: it is not there, cannot be opened, or is of another kind.
    """
    # Without O_NONBLOCK opening a pipe waits for a writer; the kind is asked of what was opened.
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    kind = os.fstat(descriptor).st_mode
    if stat.S_ISREG(kind):
        return FileIO(descriptor)
    os.close(descriptor)
    if stat.S_ISDIR(kind):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    raise OSError(_NOT_REGULAR)


def read_regular(path: str, limit: int = LARGEST_BYTES) -> bytes:
    """Read a regular file of at most `limit` bytes.

    Raises:
        OSError: it is not there, cannot be read, is of another kind or larger.
    """
    with open_regular(path) as file:
        return _read_all(file, limit)


def _read_all(file: IO[bytes], limit: int) -> bytes:
    """Read a file to its end, and not far beyond the limit."""
    # In chunks, for a read of the whole limit would set its memory aside for each small file.
    chunks, left = [], limit
    while chunk := file.read(_CHUNK_BYTES):
        chunks.append(chunk)
        left -= len(chunk)
        if left < 0:
            raise OSError(f"it has more than {limit:,} bytes")
    return b"".join(chunks)


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
            return read_regular(f"{self.root}/{folder}/{file}")
        except (FileNotFoundError, NotADirectoryError):
            return None


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
            with open_regular(self.root) as opened, zipfile.ZipFile(opened) as archive:
                entry = archive.getinfo(f"{folder}/{file}")
                if entry.compress_type not in BOUNDED_METHODS:
                    raise OSError(f"it is packed by method {entry.compress_type}, no wheel's")
                with archive.open(entry) as packed:
                    return _read_all(packed, LARGEST_BYTES)
        except KeyError:
            return None
        except (zipfile.BadZipFile, zlib.error, RuntimeError, EOFError) as error:
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
        with open_regular(root) as opened, zipfile.ZipFile(opened) as archive:
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
