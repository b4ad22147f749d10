"""What a plugin's metadata state: name, version, entry points and requirements."""

from __future__ import annotations

import ast
import configparser
import tomllib
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import Distribution, PathDistribution
from pathlib import Path

from backend_caps.compatibility.plugin import EntryPoint
from backend_caps.engines.source.files import UnparsedError, parsed

_PARTS = ("metadata", "options")
"""The parts of a `setup.cfg` that state what `pyproject.toml` does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    """What the metadata of a distribution, or the files that make them, state."""

    name: str
    version: str | None = None
    entry_points: tuple[EntryPoint, ...] = ()
    requires: tuple[str, ...] = ()


def metadata_of(source: Path) -> Metadata:
    """Read the metadata of a wheel, or of a project's folder.

    A folder is read by its `pyproject.toml`, `setup.cfg` and `setup.py`, and nothing runs. What a
    build left in `*.egg-info`, which may be older, fills in what they do not state.

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
    project = _of_project(source)
    built = sorted([*source.glob("*.egg-info"), *source.glob("src/*.egg-info")])
    if not built:
        return project
    left = of_distribution(PathDistribution(built[0]), built[0].name)
    return Metadata(
        name=left.name,
        version=project.version or left.version,
        entry_points=project.entry_points or left.entry_points,
        requires=project.requires or left.requires,
    )


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
    """Read `pyproject.toml`, `setup.cfg` and `setup.py`."""
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
    settings: Mapping[str, str] = {}
    if (file := folder / "setup.cfg").is_file():
        settings, own = _of_settings(file.read_text(encoding="utf-8"))
        points += own
    if (file := folder / "setup.py").is_file():
        points += _of_setup(file.read_bytes())
    stated = project.get("dependencies")
    if not isinstance(stated, list):
        stated = settings.get("install_requires", "").split("\n")
    version = project.get("version", settings.get("version"))
    is_stated = isinstance(version, str) and not version.startswith(("attr:", "file:"))
    return Metadata(
        name=str(project.get("name") or settings.get("name") or folder.resolve().name),
        version=str(version) if is_stated else None,
        entry_points=tuple(points),
        requires=tuple(filter(None, (str(each).strip() for each in stated))),
    )


def _of_settings(text: str) -> tuple[dict[str, str], Iterator[EntryPoint]]:
    """Read the metadata and the entry points of a `setup.cfg`."""
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment]  # names keep their case
    try:
        parser.read_string(text, "setup.cfg")
    except configparser.Error as error:
        raise ValueError(f"{error}") from error
    settings = {n: parser.get(part, n) for part in _PARTS if part in parser for n in parser[part]}
    groups = dict(parser["options.entry_points"]) if "options.entry_points" in parser else {}
    return settings, _of_groups(groups, text)


def _of_groups(groups: Mapping[str, str], text: str) -> Iterator[EntryPoint]:
    lines = text.splitlines()
    for group, entries in groups.items():
        for entry in filter(None, map(str.strip, entries.splitlines())):
            name, _, value = map(str.strip, entry.partition("="))
            found = (at for at, line in enumerate(lines, 1) if line.strip() == entry)
            yield EntryPoint(group=group, name=name, value=value, at=f"setup.cfg:{next(found, 1)}")


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
