"""The Python files of an engine: of a folder, a wheel or what is installed, read in place."""

from __future__ import annotations

import importlib.machinery
import os
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from email.parser import BytesHeaderParser
from pathlib import Path, PurePosixPath

from backend_caps.capability.status import Problem
from backend_caps.engines import problems
from backend_caps.engines.errors import EngineNotInstalledError, EngineSourceError

LARGEST_BYTES = 4 * 2**20
"""The largest file that is read. The largest of SGLang and vLLM has under 1 MiB."""
INSTALLED = "installed"


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


def open_tree(
    package: str, source: Path | None, *, within: Callable[[str], bool] = lambda _: True
) -> Tree:
    """Read a package's Python files.

    Args:
        package: such as `sglang`.
        source: a wheel, or a folder that has the package's folder in it or is it; the
            installed package if None.
        within: tells of a file's path whether it is wanted.

    Raises:
        EngineNotInstalledError: nothing is named, and nothing is installed.
        EngineSourceError: what is named is no such folder and no such wheel.
    """
    if source is None:
        folder = _installed(package)
        return _of_folder(package, folder, INSTALLED, within)
    if source.is_dir():
        return _of_folder(package, _folder_with(package, source), source.name, within)
    return _of_wheel(package, source, within)


def _installed(package: str) -> Path:
    """Find where the package is imported from, by the path finder alone: no hook, no import."""
    spec = importlib.machinery.PathFinder.find_spec(package, sys.path)
    for place in (spec.submodule_search_locations or ()) if spec else ():
        return Path(place).parent
    raise EngineNotInstalledError(engine=package)


def _folder_with(package: str, source: Path) -> Path:
    """Find the folder of imports: of a checkout too, and of one that keeps it in `python/`."""
    for folder in (source, source / "python", source / "src"):
        if (folder / package / "__init__.py").is_file():
            return folder
    if source.resolve().name == package and (source / "__init__.py").is_file():
        return source.resolve().parent
    raise EngineSourceError(engine=package, source=str(source), problem=f"has no {package}/ in it")


@dataclass(slots=True)
class _Reading:
    """What is read so far, file by file."""

    files: dict[str, bytes] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def add(self, path: str, size: int, read: Callable[[], bytes]) -> None:
        """Read one file; what is wrong with it is a problem, and the next one is read."""
        if size > LARGEST_BYTES:
            self.problems.append(problems.too_large(path, size, LARGEST_BYTES))
            return
        try:
            self.files[path] = read()
        except (OSError, zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
            self.problems.append(problems.unreadable(path, str(error)))
        except _decompression_errors() as error:
            self.problems.append(problems.unreadable(path, str(error)))


def _decompression_errors() -> tuple[type[Exception], ...]:
    import lzma  # noqa: PLC0415 - where a file is damaged
    import zlib  # noqa: PLC0415 - where a file is damaged

    return zlib.error, lzma.LZMAError, EOFError


def _of_folder(package: str, folder: Path, source: str, within: Callable[[str], bool]) -> Tree:
    reading = _Reading()
    for name, entry in _walk(str(folder / package), package):
        if within(name):
            reading.add(name, entry.stat().st_size, Path(entry.path).read_bytes)
    return Tree(
        package=package,
        version=_version_beside(package, folder),
        source=source,
        files=reading.files,
        problems=tuple(reading.problems),
    )


def _walk(folder: str, name: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """List Python files in a stable order; links to folders are not followed."""
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        inner = f"{name}/{entry.name}"
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(entry.path, inner)
        elif entry.name.endswith(".py") and entry.is_file():
            yield inner, entry


def _version_beside(package: str, folder: Path) -> str | None:
    """Read the version from the metadata beside a package, or from what its build wrote in it."""
    for metadata in sorted(folder.glob(f"{package}-*.dist-info/METADATA")):
        return _version_of(metadata.read_bytes())
    for name in ("_version.py", "version.py"):
        stated = folder / package / name
        if stated.is_file() and (version := _stated_version(stated.read_text("utf-8", "replace"))):
            return version
    return None


def _stated_version(text: str) -> str | None:
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        if equals and name.strip() in {"__version__", "version", "__version__ = version"}:
            return value.rpartition("=")[2].strip().strip("\"'") or None
    return None


def _version_of(metadata: bytes) -> str | None:
    return BytesHeaderParser().parsebytes(metadata).get("Version")


def _of_wheel(package: str, source: Path, within: Callable[[str], bool]) -> Tree:
    def fault(problem: str) -> EngineSourceError:
        return EngineSourceError(engine=package, source=str(source), problem=problem)

    if not source.exists():
        raise fault("is not there")
    try:
        archive = zipfile.ZipFile(source)
    except (OSError, zipfile.BadZipFile) as error:
        raise fault(f"is no zip file ({error})") from error
    with archive:
        reading = _Reading()
        metadata: list[zipfile.ZipInfo] = []
        for info in archive.infolist():
            name = info.filename
            if _leads_out(name):
                reading.problems.append(problems.unsafe_path(name))
            elif name.startswith(f"{package}/") and name.endswith(".py") and within(name):
                reading.add(name, info.file_size, lambda info=info: archive.read(info))  # type: ignore[misc]
            elif name.endswith(".dist-info/METADATA") and name.count("/") == 1:
                metadata.append(info)
        if not reading.files:
            raise fault(f"has no Python file of {package} in it")
        version = _version_of(archive.read(metadata[0])) if metadata else None
    return Tree(
        package=package,
        version=version,
        source=source.name,
        files=reading.files,
        problems=tuple(reading.problems),
    )


def _leads_out(name: str) -> bool:
    """Tell whether a path in an archive points out of it, on any system."""
    parts = PurePosixPath(name.replace("\\", "/")).parts
    return not parts or name.startswith(("/", "\\")) or ".." in parts or ":" in parts[0]
