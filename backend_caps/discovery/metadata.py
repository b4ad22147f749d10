"""The metadata folders of a path entry, and the fields that discovery reads from their files.

A pipe, a device or a huge file may have a name that discovery reads, so every file is opened by
`open_regular` or `read_regular`: they read regular files, up to a size, and never block. Of an
`entry_points.txt` only the lines of our sections are decoded and parsed, each by itself.
"""

# ruff: noqa: PTH119, PTH208 - pathlib takes longer than the scan of a file

from __future__ import annotations

import errno
import os
import re
import stat
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from io import FileIO
from typing import IO

from entrypoints import BadEntryPoint, EntryPoint

LARGEST_BYTES = 5 * 10**6
"""The largest file that is read, of metadata and of engines' sources."""
BOUNDED_METHODS = frozenset({zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED})
"""Zip methods that stop at the requested size; for others zipfile unpacks the whole entry."""
_CHUNK_BYTES = 1 << 16
_ENDINGS = (".dist-info", ".egg-info")
_SEPARATORS = re.compile(r"[-_.]+")
_EGG = re.compile(r"(?P<name>.+?)-(?P<version>\d[^-]*)(-py\d.*)?")
_REQUIREMENT = re.compile(r"backend[-_.]caps(?![-_.\w])(?P<wanted>[^;]*).*", re.IGNORECASE)
_MENTION = re.compile(rb"backend[-_.]caps")
_OURS = re.compile(r"\s*backend[-_.]caps(\..*)?\s*")
_BOM = b"\xef\xbb\xbf"


def open_regular(path: str) -> FileIO:
    """Open a regular file, or a link to one, to be read.

    Raises:
        OSError: it is not there, cannot be opened, or is of another kind.
    """
    # Without O_NONBLOCK, opening a pipe blocks until it has a writer. fstat of the descriptor,
    # because the path may name another file by then.
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    kind = os.fstat(descriptor).st_mode
    if stat.S_ISREG(kind):
        return FileIO(descriptor)
    os.close(descriptor)
    if stat.S_ISDIR(kind):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    raise OSError("it is no file, nor a link to one")


def read_regular(path: str, limit: int = LARGEST_BYTES) -> bytes:
    """Read a regular file of at most `limit` bytes.

    Raises:
        OSError: it is not there, cannot be read, is of another kind or larger.
    """
    with open_regular(path) as file:
        return _read_all(file, limit)


def _read_all(file: IO[bytes], limit: int) -> bytes:
    """Read a file to its end; raise OSError soon after the limit."""
    # In chunks: one read of `limit` bytes would allocate all of them for each small file.
    chunks, num_left = [], limit
    while chunk := file.read(_CHUNK_BYTES):
        chunks.append(chunk)
        num_left -= len(chunk)
        if num_left < 0:
            raise OSError(f"it has more than {limit:,} bytes")
    return b"".join(chunks)


@dataclass(frozen=True, slots=True)
class PathEntry:
    """A folder, or a zip that Python can import from: an egg, a wheel or another."""

    root: str
    folders: tuple[str, ...]
    """The metadata folders at its top, sorted."""
    is_archive: bool

    @classmethod
    def at(cls, root: str) -> PathEntry | None:
        """List a path entry's metadata folders; None where there can be none."""
        is_archive = False
        try:
            try:
                names = os.listdir(root)
            except NotADirectoryError:
                is_archive = True
                with open_regular(root) as opened, zipfile.ZipFile(opened) as archive:
                    names = [name.split("/", 1)[0] for name in archive.namelist()]
        except (zipfile.BadZipFile, OSError):
            return None
        is_egg = os.path.basename(root).lower().endswith(".egg")
        folders = {
            name
            for name in names
            if (low := name.lower()).endswith(_ENDINGS) or (is_egg and low == "egg-info")
        }
        return cls(root, tuple(sorted(folders)), is_archive)

    def read(self, folder: str, file: str) -> bytes | None:
        """Read a file of a metadata folder; None where there is none.

        Raises:
            OSError: it exists and cannot be read.
        """
        try:
            if self.is_archive:
                return self._unpack(f"{folder}/{file}")
            return read_regular(f"{self.root}/{folder}/{file}")
        except (FileNotFoundError, NotADirectoryError, KeyError):
            return None

    def _unpack(self, name: str) -> bytes:
        try:
            with open_regular(self.root) as opened, zipfile.ZipFile(opened) as archive:
                entry = archive.getinfo(name)
                if entry.compress_type not in BOUNDED_METHODS:
                    raise OSError(f"it is packed by method {entry.compress_type}, no wheel's")
                with archive.open(entry) as packed:
                    return _read_all(packed, LARGEST_BYTES)
        except (zipfile.BadZipFile, zlib.error, RuntimeError, EOFError) as error:
            raise OSError(str(error)) from error


def normalised(name: str) -> str:
    """Spell a distribution's name as PEP 503 does: `My_Pkg` and `my.pkg` are `my-pkg`."""
    return _SEPARATORS.sub("-", name.strip()).lower()


def named(folder: str, root: str) -> tuple[str, str | None]:
    """Read a distribution's name and version off its metadata folder."""
    if folder.lower() == "egg-info":
        return _split_egg(os.path.basename(root)[: -len(".egg")])
    stem, _, ending = folder.rpartition(".")
    if ending.lower() == "egg-info":
        return _split_egg(stem)
    # A dist-info's version has no dash, though a name may have one against the rules.
    name, dash, version = stem.rpartition("-")
    return (normalised(name), version) if dash else (normalised(stem), None)


def _split_egg(stem: str) -> tuple[str, str | None]:
    match = _EGG.fullmatch(stem)
    return (normalised(match["name"]), match["version"]) if match else (normalised(stem), None)


def headers(data: bytes, name: str, version: str | None) -> tuple[str, str | None, str | None]:
    """Read name, version and the required backend-caps from METADATA or PKG-INFO.

    `name` and `version`, those of the folder, are returned where the file has none.
    """
    requires = None
    for raw in data.splitlines():
        if not raw.strip():
            break
        field, _, value = raw.decode("utf-8", "replace").partition(":")
        match field.strip().lower():
            case "name":
                name = normalised(value)
            case "version":
                version = value.strip()
            case "requires-dist" if match := _REQUIREMENT.fullmatch(value.strip()):
                requires = requires or "backend-caps" + re.sub(r"[\s()]", "", match["wanted"])
    return name, version, requires


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A line of one of our sections."""

    group: str
    line: int
    text: str
    name: str | None = None
    """None where the line does not have the form of an entry."""
    value: str = ""
    is_valid: bool = True


def our_entries(data: bytes) -> Iterator[Entry]:
    """List the entries of the sections whose names begin with ours."""
    # Most files do not mention us: skip them cheaply.
    return iter(()) if _MENTION.search(data) is None else entries_of(data, _OURS)


def entries_of(data: bytes, groups: re.Pattern[str]) -> Iterator[Entry]:
    """List the entries of the sections whose names match as a whole."""
    group: str | None = None
    for number, raw in enumerate(data.removeprefix(_BOM).splitlines(), start=1):
        line = raw.strip()
        if line.startswith(b"["):
            group, is_closed = _group(line, groups)
            if group is not None and not is_closed:
                yield Entry(group=group, line=number, text=_text(line), is_valid=False)
        elif group is not None and line and line[:1] not in b"#;":
            yield _entry(group, number, line)


def _group(header: bytes, wanted: re.Pattern[str]) -> tuple[str | None, bool]:
    name, bracket, rest = header[1:].rpartition(b"]")
    text = _text(name or rest)
    return (text if wanted.fullmatch(text) else None), bool(bracket)


def _entry(group: str, number: int, line: bytes) -> Entry:
    text = _text(line)
    name, sign, value = (part.strip() for part in text.partition("="))
    if not sign or not name:
        return Entry(group=group, line=number, text=text, is_valid=False)
    is_valid = line.decode("utf-8", "ignore").encode() == line and target(value) is not None
    return Entry(group=group, line=number, text=text, name=name, value=value, is_valid=is_valid)


def _text(line: bytes) -> str:
    return line.decode("utf-8", "backslashreplace")


def target(value: str) -> tuple[str, str] | None:
    """Split `module:ATTRIBUTE`; None where it does not have that form."""
    try:
        entry = EntryPoint.from_string(value, "")
    except BadEntryPoint:
        return None
    return (entry.module_name, entry.object_name) if entry.object_name else None
