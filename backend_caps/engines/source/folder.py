"""The Python files of a folder: a package, a checkout, or what is installed."""

from __future__ import annotations

import importlib.machinery
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import IO
from urllib.parse import unquote, urlsplit

from backend_caps.discovery.places import open_regular, read_regular
from backend_caps.engines import problems
from backend_caps.engines.errors import EngineNotInstalledError, EngineSourceError
from backend_caps.engines.source.contents import Contents, words_of
from backend_caps.engines.source.version import STATED_IN, stated_version, version_of_metadata


def read_folder(
    package: str, source: Path, within: Callable[[str], bool]
) -> tuple[Contents, str | None]:
    """Read a package's Python files out of a folder, and its version.

    Raises:
        EngineSourceError: it neither has the package nor is it.
    """
    folder = _package_in(package, source)
    if folder is None:
        problem = f"has no {package}/ in it"
        raise EngineSourceError(engine=package, source=str(source), problem=problem)
    return _read(package, folder, (folder.parent,), within)


def read_installed(package: str, within: Callable[[str], bool]) -> tuple[Contents, str | None]:
    """Read an installed package's Python files, and its version.

    Raises:
        EngineNotInstalledError: it is not installed.
    """
    site = [Path(folder) for folder in sys.path]
    for folder in _installed(package, site):
        contents, version = _read(package, folder, site, within)
        if contents.files or contents.problems:
            return contents, version
    raise EngineNotInstalledError(engine=package)


def _package_in(package: str, source: Path) -> Path | None:
    """Find the package's folder: in a checkout too, which may keep it in `python/`."""
    for folder in (source / package, source / "python" / package, source / "src" / package):
        if (folder / "__init__.py").is_file():
            return folder
    is_it = package in {source.absolute().name, source.resolve().name}
    return source if is_it and (source / "__init__.py").is_file() else None


def _installed(package: str, site: Iterable[Path]) -> Iterator[Path]:
    """List where it may be imported from, without a hook or an import: a namespace comes last."""
    spec = importlib.machinery.PathFinder.find_spec(package, sys.path)
    places = [Path(place) for place in (spec.submodule_search_locations or ())] if spec else []
    yield from (place for place in places if (place / "__init__.py").is_file())
    yield from _editable(package, site)
    yield from places


def _editable(package: str, site: Iterable[Path]) -> Iterator[Path]:
    """List the checkouts that the metadata names, as PEP 610 has it, for hooks are not asked."""
    for folder in site:
        for path in folder.glob(f"{package}-*.dist-info/direct_url.json"):
            place = _checkout_of(package, path)
            if place is not None:
                yield place


def _checkout_of(package: str, path: Path) -> Path | None:
    """Find the package that a `direct_url.json` names; None where it names none that is there."""
    try:
        stated = json.loads(read_regular(str(path)))
        url = urlsplit(stated["url"]) if isinstance(stated["url"], str) else None
        if url is None or url.scheme != "file":
            return None
        return _package_in(package, Path(unquote(url.path)))
    # A ValueError is of a path too: no system has one with a null or a lone surrogate in it.
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None


def _read(
    package: str, folder: Path, beside: Iterable[Path], within: Callable[[str], bool]
) -> tuple[Contents, str | None]:
    contents = Contents()
    for path, entry in _python_files(folder, package, contents, within):
        contents.add(path, partial(_opened, entry))
    contents.files = dict(sorted(contents.files.items()))
    return contents, _version(package, folder, beside, contents)


def _python_files(
    folder: Path, package: str, contents: Contents, within: Callable[[str], bool]
) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """List the wanted Python files; links to folders are told of, and not followed."""
    pending = [(str(folder), package)]
    while pending:
        place, name = pending.pop()
        try:
            entries = sorted(os.scandir(place), key=lambda entry: entry.name)
        except OSError as error:
            contents.problems.append(problems.unreadable(f"{name}/", words_of(error)))
            continue
        for entry in entries:
            inner = f"{name}/{_printable(entry.name)}"
            if entry.is_dir(follow_symlinks=False):
                pending.append((entry.path, inner))
            elif entry.name.endswith(".py") and within(inner):
                yield inner, entry
            elif within(f"{inner}/__init__.py") and _is_folder(entry):
                told = problems.unreadable(f"{inner}/", "links to folders are not followed")
                contents.problems.append(told)


def _printable(name: str) -> str:
    """Write a file's name as text; Linux allows any bytes in one."""
    return name.encode("utf-8", "backslashreplace").decode()


def _is_folder(entry: os.DirEntry[str]) -> bool:
    return entry.is_symlink() and Path(entry.path).is_dir()


def _opened(entry: os.DirEntry[str]) -> IO[bytes]:
    return open_regular(entry.path)


def _version(package: str, folder: Path, beside: Iterable[Path], contents: Contents) -> str | None:
    """Read the version that the metadata has, unless two versions are there, or the package."""
    metadata = [path for place in beside for path in place.glob(f"{package}-*.dist-info/METADATA")]
    stated = [path for name in STATED_IN if (path := folder / name).is_file()]
    for path in (*(metadata if len(metadata) == 1 else ()), *stated):
        text = contents.read(path.name, partial(open_regular, str(path)))
        read = version_of_metadata if path in metadata else stated_version
        if text is not None and (version := read(text)):
            return version
    return None
