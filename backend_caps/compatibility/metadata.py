"""What a plugin's metadata state: name, version, entry points and requirements."""

from __future__ import annotations

import ast
import tomllib
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import Distribution, PathDistribution
from pathlib import Path

from backend_caps.compatibility.plugin import EntryPoint
from backend_caps.engines.source.files import UnparsedError, parsed


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    """What the metadata of a distribution, or the files that make them, state."""

    name: str
    version: str | None = None
    entry_points: tuple[EntryPoint, ...] = ()
    requires: tuple[str, ...] = ()


def metadata_of(source: Path) -> Metadata:
    """Read the metadata of a wheel, or of a project's folder.

    A folder without an `egg-info` is read by its `pyproject.toml` and `setup.py`; nothing runs.

    Raises:
        ValueError, OSError, zipfile.BadZipFile: one of the files cannot be read.
    """
    if not source.is_dir():
        with zipfile.ZipFile(source) as archive:
            folders = {each.partition("/")[0] for each in archive.namelist()}
            found = [each for each in sorted(folders) if each.endswith(".dist-info")]
            if not found:
                return Metadata(name=source.stem)
            path = zipfile.Path(archive, f"{found[0]}/")
            return of_distribution(PathDistribution(path), found[0])
    built = sorted([*source.glob("*.egg-info"), *source.glob("src/*.egg-info")])
    if not built:
        return _of_project(source)
    return of_distribution(PathDistribution(built[0]), built[0].name)


def of_distribution(distribution: Distribution, folder: str) -> Metadata:
    """Read the metadata of a distribution, whose folder is named."""
    text = distribution.read_text("entry_points.txt") or ""
    stated = distribution.metadata
    return Metadata(
        name=stated.get_all("Name", [folder])[0],
        version=stated.get_all("Version", [None])[0],
        entry_points=tuple(_of_ini(text, f"{folder}/entry_points.txt")),
        requires=tuple(distribution.requires or ()),
    )


def _of_ini(text: str, file: str) -> Iterator[EntryPoint]:
    group = ""
    for line, content in enumerate(map(str.strip, text.splitlines()), 1):
        name, is_entry, value = content.partition("=")
        if content.startswith("[") and content.endswith("]"):
            group = content[1:-1].strip()
        elif is_entry and not content.startswith(("#", ";")):
            at = f"{file}:{line}"
            yield EntryPoint(group=group, name=name.strip(), value=value.strip(), at=at)


def _of_project(folder: Path) -> Metadata:
    """Read `pyproject.toml` and `setup.py`."""
    project: Mapping[str, object] = {}
    points: list[EntryPoint] = []
    if (file := folder / "pyproject.toml").is_file():
        text = file.read_text(encoding="utf-8")
        document = tomllib.loads(text)
        project = document.get("project", {})
        groups = project.get("entry-points") or document.get("tool", {}).get("poetry", {}).get(
            "plugins", {}
        )
        points += _of_table(groups, text)
    if (file := folder / "setup.py").is_file():
        points += _of_setup(file.read_bytes())
    stated = project.get("dependencies")
    version = project.get("version")
    return Metadata(
        name=str(project.get("name") or folder.resolve().name),
        version=version if isinstance(version, str) else None,
        entry_points=tuple(points),
        requires=tuple(map(str, stated)) if isinstance(stated, list) else (),
    )


def _of_table(groups: object, text: str) -> Iterator[EntryPoint]:
    lines = text.splitlines()
    for group, entries in groups.items() if isinstance(groups, dict) else ():
        for name, value in entries.items() if isinstance(entries, dict) else ():
            if not isinstance(value, str):
                continue
            found = (at for at, line in enumerate(lines, 1) if name in line and value in line)
            at = f"pyproject.toml:{next(found, 1)}"
            yield EntryPoint(group=group, name=name, value=value, at=at)


def _of_setup(text: bytes) -> Iterator[EntryPoint]:
    """List the entry points that a `setup.py` writes out; none where it is no Python."""
    try:
        nodes = [*ast.walk(parsed(text))]
    except UnparsedError:
        nodes = []
    for node in nodes:
        match node:
            case ast.keyword(arg="entry_points", value=ast.Dict(keys=groups, values=lists)):
                for group, entries in zip(groups, lists, strict=True):
                    if isinstance(group, ast.Constant):
                        yield from _of_list(str(group.value), entries)


def _of_list(group: str, entries: ast.expr) -> Iterator[EntryPoint]:
    for node in ast.walk(entries):
        match node:
            case ast.Constant(value=str(text)) if "=" in text:
                name, _, value = map(str.strip, text.partition("="))
                yield EntryPoint(group=group, name=name, value=value, at=f"setup.py:{node.lineno}")
