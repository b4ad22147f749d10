"""The Python files of an engine, read in place from a folder, a wheel or what is installed."""

from __future__ import annotations

import importlib.machinery
import json
import os
import re
import struct
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from email.parser import BytesHeaderParser
from functools import partial
from pathlib import Path
from typing import IO
from urllib.parse import unquote, urlsplit

from backend_caps.capability.provenance import Problem
from backend_caps.discovery.metadata import BOUNDED_METHODS, open_regular, read_regular
from backend_caps.engines.reading import EngineError, problem

INSTALLED = "installed"
LARGEST_BYTES = 5 * 10**6
"""The largest file that is read. The largest of SGLang and vLLM has under 1 MB."""
LARGEST_TOTAL_BYTES = 250 * 10**6
"""As much is read of one source. SGLang 0.5.23 has 36 MB."""
_FIRST_READ_BYTES = 2**16
"""Most files are smaller; asking for the limit would set its memory aside for each."""
_DAMAGE = (
    OSError,
    EOFError,
    ValueError,
    RuntimeError,  # of an encrypted file, or of an unknown compression method
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
)
"""What opening or unpacking a damaged file raises."""
_VERSION_FILES = ("_version.py", "version.py")
"""Files of the package that a build writes the version into."""
_VERSION = re.compile(
    rb"""^(?:__version__|version)(?:\s*:\s*str)?\s*=\s*(?:version\s*=\s*)?(["'])([^"'\n]+)\1""",
    re.MULTILINE,
)
_Opener = Callable[[], AbstractContextManager[IO[bytes]]]
_Wanted = Callable[[str], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """The text of a package's Python files."""

    package: str
    version: str | None
    source: str
    """Where it was read: a folder's or a wheel's name, or `installed`."""
    files: Mapping[str, bytes]
    """By path, with slashes, from the folder that the package is imported from."""
    problems: tuple[Problem, ...] = ()


def open_tree(package: str, source: Path | None, *, within: _Wanted = lambda _: True) -> Tree:
    """Read a package's Python files.

    Args:
        package: such as `sglang`.
        source: a wheel, or a folder that has the package's folder in it or is it; the
            installed package if None.
        within: whether the file of a path is wanted.

    Raises:
        EngineError: `engine-not-installed`, or `engine-source-unusable`.
    """
    try:
        if source is None:
            contents = _installed_contents(package, within)
        elif source.is_dir():
            contents = _folder_contents(package, source, within)
        else:
            contents = _wheel_contents(package, source, within)
    except OSError as error:
        raise unusable(package, source, f"cannot be read ({_cause(error)})") from error
    return Tree(
        package=package,
        version=contents.version,
        source=INSTALLED if source is None else source.name,
        files=contents.files,
        problems=tuple(contents.problems),
    )


def unusable(package: str, source: Path | None, fault: str) -> EngineError:
    """Return the error of a source that has no such engine, or cannot be read."""
    return EngineError(
        "engine-source-unusable",
        f"{source or INSTALLED} {fault}; expected a wheel of {package}, or a folder with "
        f"{package}/ in it. Name another with --source.",
    )


def _cause(error: Exception) -> str:
    """Write an error without the machine's own paths in it."""
    known = error.strerror if isinstance(error, OSError) else None
    return known or str(error) or type(error).__name__


@dataclass(slots=True)
class Contents:
    """The files read so far, within limits."""

    files: dict[str, bytes] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    version: str | None = None
    num_bytes_left: int = LARGEST_TOTAL_BYTES

    def add(self, path: str, opened: _Opener) -> None:
        """Read a Python file, with line ends as the parser counts them."""
        text = self.read(path, opened)
        if text is not None:
            if b"\r" in text:
                text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
            self.files[path] = text

    def read(self, path: str, opened: _Opener) -> bytes | None:
        """Read a file up to the limit; None, and a problem, where it cannot be read."""
        limit = min(LARGEST_BYTES, self.num_bytes_left)
        try:
            with opened() as file:
                text = file.read(_FIRST_READ_BYTES)
                if len(text) == _FIRST_READ_BYTES:
                    text += file.read(max(limit + 1 - _FIRST_READ_BYTES, 0))
        except _DAMAGE as error:
            self.problems.append(problem("engine-file-unreadable", path=path, error=_cause(error)))
            return None
        if len(text) > limit:
            self.problems.append(problem("engine-file-too-large", path=path, limit=limit))
            return None
        self.num_bytes_left -= len(text)
        return text

    def read_version(self, files: Iterable[tuple[str, _Opener]]) -> None:
        """Take the version from the first metadata or version file that states one."""
        for path, opened in files:
            text = self.read(path, opened) or b""
            if path.endswith("METADATA"):
                stated = BytesHeaderParser().parsebytes(text).get("Version")
                self.version = str(stated or "").strip() or None
            elif found := _VERSION.search(text):
                self.version = found[2].decode("utf-8", "replace")
            if self.version:
                return


def _wheel_contents(package: str, source: Path, within: _Wanted) -> Contents:
    try:
        open_regular(str(source)).close()  # zipfile would wait for a pipe
        archive = zipfile.ZipFile(source)
    except FileNotFoundError as error:
        raise unusable(package, source, "is not there") from error
    except _DAMAGE as error:
        raise unusable(package, source, f"is no zip file ({_cause(error)})") from error
    with archive:
        contents = Contents()
        entries = _entries(archive, contents)
        ours = [n for n in sorted(entries) if n.startswith(f"{package}/") and n.endswith(".py")]
        if not ours:
            raise unusable(package, source, f"has no Python file of {package} in it")
        openers = {name: partial(_open_entry, archive, entry) for name, entry in entries.items()}
        for name in filter(within, ours):
            contents.add(name, openers[name])
        metadata = [n for n in entries if n.endswith(".dist-info/METADATA") and n.count("/") == 1]
        stated = [f"{package}/{name}" for name in _VERSION_FILES]
        contents.read_version((n, openers[n]) for n in (*metadata, *stated) if n in entries)
        return contents


def _entries(archive: zipfile.ZipFile, contents: Contents) -> dict[str, zipfile.ZipInfo]:
    """List the entries that may be opened; of a repeated one the last, as installers do."""
    entries: dict[str, zipfile.ZipInfo] = {}
    for entry in archive.infolist():
        name = entry.filename
        if _leads_out(name):
            contents.problems.append(problem("engine-path-unsafe", path=name))
            continue
        if name in entries:
            contents.problems.append(problem("engine-file-repeated", path=name))
        entries[name] = entry
    return entries


def _leads_out(name: str) -> bool:
    """Return whether an entry's path leads out of the archive, on any system."""
    parts = name.removesuffix("/").split("/")
    return "\\" in name or ":" in parts[0] or not {"", ".", ".."}.isdisjoint(parts)


def _open_entry(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> IO[bytes]:
    if entry.compress_type not in BOUNDED_METHODS:
        raise zipfile.BadZipFile(f"it is packed by method {entry.compress_type}, no wheel's")
    return archive.open(entry)


def _installed_contents(package: str, within: _Wanted) -> Contents:
    site = [Path(folder) for folder in sys.path]
    for folder in _installed_folders(package, site):
        contents = _package_contents(package, folder, site, within)
        if contents.files or contents.problems:
            return contents
    raise EngineError(
        "engine-not-installed",
        f"no distribution {package!r} is installed here; expected a folder {package}/ on the "
        "path of imports. Install it, or name a folder or a wheel: --source PATH.",
    )


def _installed_folders(package: str, site: Iterable[Path]) -> Iterator[Path]:
    """List where it may be imported from, without a hook or an import: a namespace comes last."""
    spec = importlib.machinery.PathFinder.find_spec(package, sys.path)
    places = [Path(place) for place in (spec.submodule_search_locations or ())] if spec else []
    yield from (place for place in places if (place / "__init__.py").is_file())
    for folder in site:
        for path in folder.glob(f"{package}-*.dist-info/direct_url.json"):
            if checkout := _editable_folder(package, path):
                yield checkout
    yield from places


def _editable_folder(package: str, path: Path) -> Path | None:
    """Return the package in the checkout that a `direct_url.json` (PEP 610) names, if any."""
    try:
        stated = json.loads(read_regular(str(path)))
        url = urlsplit(stated["url"]) if isinstance(stated["url"], str) else None
        if url is None or url.scheme != "file":
            return None
        return _package_folder(package, Path(unquote(url.path)))
    # A path with a null or a lone surrogate in it is a ValueError too.
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None


def _folder_contents(package: str, source: Path, within: _Wanted) -> Contents:
    folder = _package_folder(package, source)
    if folder is None:
        raise unusable(package, source, f"has no {package}/ in it")
    return _package_contents(package, folder, (folder.parent,), within)


def _package_folder(package: str, source: Path) -> Path | None:
    """Find the package's folder: in a checkout too, which may keep it in `python/`."""
    for folder in (source / package, source / "python" / package, source / "src" / package):
        if (folder / "__init__.py").is_file():
            return folder
    is_it = package in {source.absolute().name, source.resolve().name}
    return source if is_it and (source / "__init__.py").is_file() else None


def _package_contents(
    package: str, folder: Path, metadata_folders: Iterable[Path], within: _Wanted
) -> Contents:
    contents = Contents()
    for path, entry in _python_files(folder, package, contents, within):
        contents.add(path, partial(open_regular, entry.path))
    contents.files = dict(sorted(contents.files.items()))
    pattern = f"{package}-*.dist-info/METADATA"
    metadata = [path for place in metadata_folders for path in place.glob(pattern)]
    stated = [folder / name for name in _VERSION_FILES if (folder / name).is_file()]
    # Of two installed versions, metadata does not say which one the folder is.
    files = (*(metadata if len(metadata) == 1 else ()), *stated)
    contents.read_version((each.name, partial(open_regular, str(each))) for each in files)
    return contents


def _python_files(
    folder: Path, package: str, contents: Contents, within: _Wanted
) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """List the wanted Python files; links to folders are problems, and not followed."""
    pending = [(str(folder), package)]
    while pending:
        place, name = pending.pop()
        try:
            entries = sorted(os.scandir(place), key=lambda entry: entry.name)
        except OSError as error:
            fault = problem("engine-file-unreadable", path=f"{name}/", error=_cause(error))
            contents.problems.append(fault)
            continue
        for entry in entries:
            # Linux allows any bytes in a file's name.
            inner = f"{name}/{entry.name.encode('utf-8', 'backslashreplace').decode()}"
            if entry.is_dir(follow_symlinks=False):
                pending.append((entry.path, inner))
            elif entry.name.endswith(".py") and within(inner):
                yield inner, entry
            elif within(f"{inner}/__init__.py") and entry.is_symlink() and entry.is_dir():
                error_text = "links to folders are not followed"
                fault = problem("engine-file-unreadable", path=f"{inner}/", error=error_text)
                contents.problems.append(fault)
