"""The Python files of a wheel, read in place: nothing is unpacked onto the disk."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO

from backend_caps.discovery.places import BOUNDED_METHODS, open_regular
from backend_caps.engines import problems
from backend_caps.engines.errors import EngineSourceError
from backend_caps.engines.source.contents import DAMAGE, Contents, words_of
from backend_caps.engines.source.version import STATED_IN, stated_version, version_of_metadata


def read_wheel(
    package: str, source: Path, within: Callable[[str], bool]
) -> tuple[Contents, str | None]:
    """Read a package's Python files out of a wheel, and its version.

    Raises:
        EngineSourceError: it is no wheel of the package.
    """
    fault = partial(EngineSourceError, engine=package, source=str(source))
    try:
        open_regular(str(source)).close()  # zipfile would wait for a pipe
        archive = zipfile.ZipFile(source)
    except FileNotFoundError as error:
        raise fault(problem="is not there") from error
    except DAMAGE as error:
        raise fault(problem=f"is no zip file ({words_of(error)})") from error
    with archive:
        contents = Contents()
        entries = _entries(archive, contents)
        ours = [n for n in sorted(entries) if n.startswith(f"{package}/") and n.endswith(".py")]
        if not ours:
            raise fault(problem=f"has no Python file of {package} in it")
        for name in filter(within, ours):
            contents.add(name, partial(_opened, archive, entries[name]))
        return contents, _version(package, archive, entries, contents)


def _entries(archive: zipfile.ZipFile, contents: Contents) -> dict[str, zipfile.ZipInfo]:
    """List the entries that may be opened; of a repeated one the last, as installers do."""
    entries: dict[str, zipfile.ZipInfo] = {}
    for entry in archive.infolist():
        name = entry.filename
        if _leads_out(name):
            contents.problems.append(problems.unsafe_path(name))
            continue
        if name in entries:
            contents.problems.append(problems.entry_repeated(name))
        entries[name] = entry
    return entries


def _opened(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> IO[bytes]:
    if entry.compress_type not in BOUNDED_METHODS:
        raise zipfile.BadZipFile(f"it is packed by method {entry.compress_type}, no wheel's")
    return archive.open(entry)


def _version(
    package: str,
    archive: zipfile.ZipFile,
    entries: dict[str, zipfile.ZipInfo],
    contents: Contents,
) -> str | None:
    metadata = [n for n in entries if n.endswith(".dist-info/METADATA") and n.count("/") == 1]
    stated = [f"{package}/{name}" for name in STATED_IN if f"{package}/{name}" in entries]
    for name in (*metadata, *stated):
        text = contents.read(name, partial(_opened, archive, entries[name]))
        read = version_of_metadata if name in metadata else stated_version
        if text is not None and (version := read(text)):
            return version
    return None


def _leads_out(name: str) -> bool:
    """Tell whether an entry's path is none inside the archive, on any system."""
    parts = name.removesuffix("/").split("/")
    return "\\" in name or ":" in parts[0] or not {"", ".", ".."}.isdisjoint(parts)
