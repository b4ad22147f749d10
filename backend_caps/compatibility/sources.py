"""The files of plugins and engines: folders, wheels, sdists, checkouts, and what is installed."""

from __future__ import annotations

import ast
import tomllib
import zipfile
from collections import ChainMap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from backend_caps.compatibility.pair import Pair
from backend_caps.compatibility.plugin import EntryPoint, Plugin
from backend_caps.engines.reading import EngineError
from backend_caps.engines.source.files import open_tree, unusable
from backend_caps.engines.source.index import Index

_NO_PACKAGES = frozenset({"test", "tests", "docs", "doc", "examples", "benchmarks", "tools"})


def open_pair(plugin: Path, package: str, engine: Path | None) -> Pair:
    """Open a plugin and an engine.

    Args:
        plugin: a wheel, or a folder with the plugin's packages in it.
        package: the engine's, such as `vllm`.
        engine: a wheel, or a folder that has the engine's package; the installed one if None.

    Raises:
        EngineError: either cannot be read, or has no such package.
    """
    tree = open_tree(package, engine)
    opened = open_plugin(plugin, package)
    joint = replace(tree, files=ChainMap(dict(tree.files), dict(opened.files)))
    return Pair(Index(joint), opened)


def open_plugin(plugin: Path, engine: str) -> Plugin:
    """Open a plugin of an engine."""
    files: dict[str, bytes] = {}
    version: str | None = None
    requires: tuple[str, ...] = ()
    for name, root in _packages(plugin, engine):
        found = open_tree(name, root)
        files |= found.files
        version = version or found.version
        requires = requires or found.requires or ()
    if not files:
        raise unusable(plugin.name, plugin, "has no package in it")
    return Plugin(
        name=plugin.name,
        version=version,
        files=files,
        requires=requires,
        entry_points=tuple(_entry_points(plugin)),
    )


def _entry_points(plugin: Path) -> Iterator[EntryPoint]:
    """List the entry points that a plugin's metadata state."""
    if not plugin.is_dir():
        with zipfile.ZipFile(plugin) as archive:
            for name in archive.namelist():
                if name.endswith(".dist-info/entry_points.txt"):
                    yield from _of_ini(archive.read(name).decode(), name)
        return
    for path in (
        *plugin.glob("*.egg-info/entry_points.txt"),
        *plugin.glob("src/*.egg-info/e*.txt"),
    ):
        yield from _of_ini(path.read_text(), path.name)
    if (project := plugin / "pyproject.toml").is_file():
        groups = tomllib.loads(project.read_text()).get("project", {}).get("entry-points", {})
        for group, entries in groups.items():
            for name, value in entries.items():
                yield EntryPoint(group=group, name=name, value=value, at="pyproject.toml:1")
    if (setup := plugin / "setup.py").is_file():
        yield from _of_setup(ast.parse(setup.read_text()))


def _of_ini(text: str, file: str) -> Iterator[EntryPoint]:
    group = ""
    for line, content in enumerate(map(str.strip, text.splitlines()), 1):
        name, is_entry, value = content.partition("=")
        if content.startswith("[") and content.endswith("]"):
            group = content[1:-1].strip()
        elif is_entry and not content.startswith(("#", ";")):
            yield EntryPoint(
                group=group, name=name.strip(), value=value.strip(), at=f"{file}:{line}"
            )


def _of_setup(tree: ast.Module) -> Iterator[EntryPoint]:
    """List the entry points that a `setup.py` writes out."""
    for node in ast.walk(tree):
        match node:
            case ast.keyword(arg="entry_points", value=ast.Dict(keys=groups, values=lists)):
                for group, entries in zip(groups, lists, strict=True):
                    for each in ast.walk(entries):
                        match group, each:
                            case ast.Constant(value=str(words)), ast.Constant(value=str(text)):
                                name, _, value = text.partition("=")
                                yield EntryPoint(
                                    group=words,
                                    name=name.strip(),
                                    value=value.strip(),
                                    at=f"setup.py:{each.lineno}",
                                )


def _packages(plugin: Path, engine: str) -> Iterator[tuple[str, Path]]:
    """List the packages of a plugin, each with what has it."""
    if plugin.is_dir():
        for root in (plugin, plugin / "src"):
            for folder in sorted(root.iterdir()) if root.is_dir() else ():
                is_own = folder.name not in {*_NO_PACKAGES, engine}
                if is_own and (folder / "__init__.py").is_file():
                    yield folder.name, root
        return
    try:
        with zipfile.ZipFile(plugin) as archive:
            names = {each.partition("/")[0] for each in archive.namelist() if each.endswith(".py")}
    except (OSError, zipfile.BadZipFile) as error:
        raise EngineError("engine-source-unusable", f"{plugin} cannot be read: {error}") from error
    for name in sorted(names - {engine}):
        if "." not in name and name not in _NO_PACKAGES:
            yield name, plugin
