"""Plugins and engines as they are named on a command line, found and opened."""

from __future__ import annotations

import json
import zipfile
from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import ClassVar
from urllib.parse import unquote, urlsplit

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion, Version

from backend_caps.compatibility.archives import unpacked
from backend_caps.compatibility.metadata import Metadata, metadata_of, of_distribution
from backend_caps.compatibility.pair import Pair
from backend_caps.compatibility.plugin import Plugin
from backend_caps.compatibility.releases import Releases
from backend_caps.engines.source.files import Tree, open_tree
from backend_caps.engines.source.index import Index
from backend_caps.errors import CodedError

ENGINES = ("sglang", "vllm")
_NO_PACKAGES = frozenset({"test", "tests", "docs", "doc", "examples", "benchmarks", "tools"})
_INSTALLED = ("", "installed")
_LATEST = "latest"


class SourceError(CodedError):
    """A plugin or an engine that was named cannot be found or read."""

    codes: ClassVar = {
        "engine-spelled-wrong": "what stands after an engine's name is no version, path or range",
        "plugin-empty": "a plugin's source has no package in it",
        "plugin-not-found": "a plugin that was named is no path, and nothing installed",
        "plugin-unreadable": "a plugin's wheel or its metadata cannot be read",
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSource:
    """An engine's source."""

    package: str
    """Such as `vllm`."""
    path: Path | None = None
    """A folder, a wheel or a source distribution; None for the installed one."""
    revision: str | None = None
    """Of the checkout at `path`."""

    def open(self) -> Tree:
        """Read its files.

        Raises:
            ArchiveError, EngineError: it cannot be read.
        """
        if self.path is None:
            return open_tree(self.package, None)
        with unpacked(self.path, self.revision, package=self.package) as path:
            tree = open_tree(self.package, path)
            if tree.version is None and path.is_dir():
                tree.version = metadata_of(path).version or _stated(path)
        name = self.path.resolve().name
        return replace(tree, source=name if self.revision is None else f"{name}@{self.revision}")


def is_engine(word: str) -> bool:
    """Return whether a word of a command line names an engine, and no plugin."""
    return any(word == each or word.startswith((f"{each}@", *_ranges(each))) for each in ENGINES)


def _ranges(package: str) -> Iterator[str]:
    yield from (f"{package}{sign}" for sign in ("==", "!=", ">", "<", "~="))


def engine_sources(word: str, releases: Releases) -> list[EngineSource]:
    """Find the engine that a word names, or the releases of one, the oldest first.

    Args:
        word: `vllm` (what is installed), `vllm@0.33.0`, `vllm@latest`, `vllm@PATH`,
            `vllm@PATH@REVISION`, or a range such as `vllm>=0.30`.
        releases: where releases are looked for.

    Raises:
        SourceError: the word is none of these.
        ReleaseError, MissingExtraError: a release cannot be had.
    """
    package, _, place = word.partition("@")
    if package not in ENGINES:
        return _matching(word, releases)
    if place in _INSTALLED:
        return [EngineSource(package=package)]
    if place == _LATEST:
        return [EngineSource(package=package, path=releases.newest(package).path)]
    if (path := Path(place)).exists():
        return [EngineSource(package=package, path=path)]
    folder, has_revision, revision = place.rpartition("@")
    if has_revision and Path(folder).is_dir():
        return [EngineSource(package=package, path=Path(folder), revision=revision)]
    try:
        Version(place)
    except InvalidVersion as error:
        raise SourceError(
            "engine-spelled-wrong",
            f"{word!r} names no engine: {place!r} is no path that exists, and no version; expected "
            f"{package}@0.33.0, {package}@latest, {package}@PATH, or a range such as "
            f"'{package}>=0.30'.",
        ) from error
    return _matching(f"{package}=={place}", releases)


def _matching(word: str, releases: Releases) -> list[EngineSource]:
    try:
        wanted = Requirement(word)
    except InvalidRequirement as error:
        raise SourceError(
            "engine-spelled-wrong",
            f"{word!r} is no range of versions: {error}; expected such as 'vllm>=0.30,<0.34'.",
        ) from error
    found = releases.matching(wanted)
    return [EngineSource(package=each.package, path=each.path) for each in found]


def open_pair(plugin: Plugin, engine: Tree) -> Pair:
    """Put a plugin beside an engine."""
    return Pair(
        Index(replace(engine, files=ChainMap(dict(engine.files), dict(plugin.files)))), plugin
    )


def open_plugin(word: str, engines: Sequence[str] = ENGINES) -> Plugin:
    """Open a plugin.

    Args:
        word: a folder, a wheel, a source distribution, `FOLDER@REVISION`, or the name of an
            installed distribution.
        engines: the packages of engines, which are no part of it.

    Raises:
        SourceError: nothing has this name, or it cannot be read.
        ArchiveError, EngineError: it cannot be read.
    """
    path, revision = Path(word), None
    if not path.exists():
        folder, has_revision, stated = word.rpartition("@")
        if not (has_revision and Path(folder).is_dir()):
            return _installed(word, engines)
        path, revision = Path(folder), stated
    with unpacked(path, revision) as root:
        with _reading(word):
            packages, metadata = _packages(root, engines), metadata_of(root)
            modules = _modules(root, metadata)
        return _opened(word, packages, modules, metadata)


@contextmanager
def _reading(word: str) -> Iterator[None]:
    """Raise a SourceError for a file that cannot be read."""
    try:
        yield
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise SourceError(
            "plugin-unreadable",
            f"{word} cannot be read: {error}; expected a folder, a wheel or a source distribution, "
            "with metadata that can be parsed. Build or download it again.",
        ) from error


def _opened(
    word: str,
    packages: Sequence[tuple[str, Path]],
    modules: Mapping[str, bytes],
    metadata: Metadata,
) -> Plugin:
    trees = [open_tree(name, place) for name, place in packages]
    files = {path: text for tree in trees for path, text in tree.files.items()} | dict(modules)
    if not files:
        raise SourceError(
            "plugin-empty",
            f"{word} has no package in it; expected a folder, a wheel or a source distribution "
            "with a folder that has an __init__.py, at its top or in src/, or with the module of "
            "an entry point.",
        )
    versions = [metadata.version, *(tree.version for tree in trees)]
    return Plugin(
        name=metadata.name,
        version=next(filter(None, versions), None),
        files=files,
        entry_points=metadata.entry_points,
        requires=metadata.requires,
    )


def _packages(source: Path, engines: Sequence[str]) -> list[tuple[str, Path]]:
    """List the packages of a plugin, each with what has it."""
    left_out = {*_NO_PACKAGES, *engines}
    if source.is_dir():
        if (source / "__init__.py").is_file():
            return [(source.resolve().name, source)]
        places = [each for each in (source, source / "src") if each.is_dir()]
        folders = [each for place in places for each in sorted(place.iterdir())]
        is_package = [each for each in folders if (each / "__init__.py").is_file()]
        return [(each.name, each.parent) for each in is_package if each.name not in left_out]
    with zipfile.ZipFile(source) as archive:
        paths = [each for each in archive.namelist() if each.endswith("/__init__.py")]
    names = {each.partition("/")[0] for each in paths if each.count("/") == 1}
    return [(name, source) for name in sorted(names - left_out)]


def _modules(source: Path, metadata: Metadata) -> dict[str, bytes]:
    """Read the files beside the packages that are modules of entry points."""
    heads = {each.module.partition(".")[0] for each in metadata.entry_points}
    names = sorted(f"{each}.py" for each in heads if each)
    if source.is_dir():
        places = [folder / name for folder in (source, source / "src") for name in names]
        found = {each.name: each.read_bytes() for each in places if each.is_file()}
    else:
        with zipfile.ZipFile(source) as archive:
            there = {*archive.namelist()}
            found = {name: archive.read(name) for name in names if name in there}
    return {n: text.replace(b"\r\n", b"\n").replace(b"\r", b"\n") for n, text in found.items()}


def _installed(name: str, engines: Sequence[str]) -> Plugin:
    try:
        found = distribution(name)
    except PackageNotFoundError as error:
        raise SourceError(
            "plugin-not-found",
            f"no plugin {name!r}: it is no path, and no distribution that is installed here; "
            "expected a folder, a wheel, a source distribution, FOLDER@REVISION or a name.",
        ) from error
    metadata = of_distribution(found, f"{name}.dist-info")
    root = Path(str(found.locate_file("")))
    names = {each.parts[0] for each in found.files or () if each.name == "__init__.py"}
    names = {each for each in names if (root / each / "__init__.py").is_file()}
    packages = [(each, root) for each in sorted(names - {*_NO_PACKAGES, *engines})]
    if not packages and (checkout := _checkout(found)) is not None:
        root = checkout
        with _reading(str(checkout)):
            packages = _packages(checkout, engines)
    return _opened(name, packages, _modules(root, metadata), metadata)


def _checkout(found: Distribution) -> Path | None:
    """Return the folder of a distribution that is installed in place."""
    try:
        url = urlsplit(str(json.loads(found.read_text("direct_url.json") or "{}").get("url", "")))
    except ValueError:
        return None
    return Path(unquote(url.path)) if url.scheme == "file" else None


def _stated(folder: Path) -> str | None:
    """Return the version in a source distribution's `PKG-INFO`."""
    file = folder / "PKG-INFO"
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else ()
    found = (line.partition(":")[2].strip() for line in lines if line.startswith("Version:"))
    return next(found, None)
