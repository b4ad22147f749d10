"""Plugins compared with engines, both as a command line names them: the document of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from packaging.version import Version

from backend_caps.compatibility.comparison import Comparison, Key, compare, since, upgrade
from backend_caps.compatibility.contact import Verdict
from backend_caps.compatibility.plugin import Plugin
from backend_caps.compatibility.releases import Releases
from backend_caps.compatibility.sources import EngineSource, engine_sources, open_plugin
from backend_caps.report.fits_documents import FitsDocument, Located, fits_document

_NUM_UPGRADE = 2
"""Two releases of one engine on a command line are an upgrade from one to the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Which plugins are compared with which engines."""

    plugins: Sequence[str]
    """Each as `open_plugin` takes it."""
    engines: Sequence[str]
    """Each as `engine_sources` takes it; two of one engine are an upgrade."""
    releases: Releases
    finds_since: bool = False
    """Whether older releases are compared too, for the first that has each break."""


def fits_of(question: Question) -> FitsDocument:
    """Compare plugins with engines.

    Raises:
        BackendCapsError: a plugin or an engine cannot be found or read.
    """
    sources = [
        each for word in question.engines for each in engine_sources(word, question.releases)
    ]
    found = [
        (comparison, located_in(word))
        for word in question.plugins
        for comparison in _compared(open_plugin(word), sources, question)
    ]
    return fits_document(found)


def _compared(
    plugin: Plugin, sources: Sequence[EngineSource], question: Question
) -> Iterator[Comparison]:
    """Compare a plugin with each release; of two that are named, what the upgrade brings."""
    found = [compare(plugin, source.open()) for source in sources]
    if len(question.engines) == _NUM_UPGRADE and len({each.package for each in sources}) == 1:
        found = [upgrade(old, new) for old, new in pairwise(found)]
    elif len(found) > 1:
        found = [*_with_first(found)]
    yield from (_searched(each, question) for each in found)


def _with_first(found: Sequence[Comparison]) -> Iterator[Comparison]:
    """Note since when each break is there, as far as the releases that were read tell."""
    first: dict[Key, str] = {}
    earlier, engine = set[Key](), ""
    for each in found:
        broken: set[Key] = {own.key for own in each.findings if own.verdict is Verdict.BREAKS}
        if each.engine == engine:
            first = {key: first[key] for key in first.keys() & broken}
            first |= dict.fromkeys(broken - earlier, each.version or "")
        else:
            first = {}
        earlier, engine = broken, each.engine
        yield replace(each, since=first)


def _searched(found: Comparison, question: Question) -> Comparison:
    if not question.finds_since or not found.breaks or found.version is None:
        return found
    older = question.releases.before(found.engine, Version(found.version))
    sources = (EngineSource(package=found.engine, path=each.path) for each in older)
    return replace(found, since={**found.since, **since(found, sources)})


def located_in(word: str) -> Located:
    """Return what finds a plugin's `file:line` in its folder, where it is one.

    A plugin's files are named from the folder that its packages are imported from, such as `src`;
    editors and code hosts look for them from the working directory.
    """
    folder = Path(word)
    if not folder.is_dir():
        return str

    def located(at: str) -> str:
        file, _, line = at.rpartition(":")
        places = (folder / file, folder / "src" / file, folder / ".." / file)
        path = next((each.resolve() for each in places if each.is_file()), None)
        if path is None:
            return at
        here = Path.cwd()
        shown = path.relative_to(here) if path.is_relative_to(here) else path
        return f"{shown.as_posix()}:{line}"

    return located
