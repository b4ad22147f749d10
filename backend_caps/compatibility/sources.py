"""The files of plugins and engines: folders, wheels, sdists, checkouts, and what is installed."""

from __future__ import annotations

import zipfile
from collections import ChainMap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from backend_caps.compatibility.pair import Pair
from backend_caps.engines.reading import EngineError
from backend_caps.engines.source.files import Tree, open_tree, unusable
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
    own = Tree(package=plugin.name, source=plugin.name)
    for name, root in _packages(plugin, package):
        found = open_tree(name, root)
        own.files = {**own.files, **found.files}
        own.version = own.version or found.version
        own.requires = own.requires or found.requires
    if not own.files:
        raise unusable(plugin.name, plugin, "has no package in it")
    joint = replace(tree, files=ChainMap(dict(tree.files), dict(own.files)))
    return Pair(Index(joint), own)


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
