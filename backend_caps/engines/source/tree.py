"""The Python files of an engine: of a folder, a wheel or what is installed, read in place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from backend_caps.capability.status import Problem
from backend_caps.engines.errors import EngineSourceError
from backend_caps.engines.source.contents import words_of
from backend_caps.engines.source.folder import read_folder, read_installed
from backend_caps.engines.source.wheel import read_wheel

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
        contents, version = read_installed(package, within)
    else:
        try:
            read = read_folder if source.is_dir() else read_wheel
            contents, version = read(package, source, within)
        except OSError as error:
            problem = f"cannot be read ({words_of(error)})"
            raise EngineSourceError(engine=package, source=str(source), problem=problem) from error
    return Tree(
        package=package,
        version=version,
        source=INSTALLED if source is None else source.name,
        files=contents.files,
        problems=tuple(contents.problems),
    )
