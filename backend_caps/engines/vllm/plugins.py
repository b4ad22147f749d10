"""Read vLLM with the distributions that extend it: their platforms, registrations and classes.

A plugin's package is read into the tree of vLLM, so that its classes are followed to vLLM's own
bases and stated by the same reader. Nothing of it is imported.
"""

from __future__ import annotations

import ast
from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement

from backend_caps.capability.backend import Backend
from backend_caps.capability.provenance import Problem, Source
from backend_caps.discovery.engine_plugins import EngineDistribution
from backend_caps.discovery.metadata import Entry, target
from backend_caps.engines.plugin import EnginePlugin, Platform, PlatformChoice, Registration
from backend_caps.engines.reading import EngineError, EngineReading, problem
from backend_caps.engines.source.classes import Classes
from backend_caps.engines.source.files import Tree, open_tree
from backend_caps.engines.source.guards import condition, returns
from backend_caps.engines.source.index import External, FunctionDef, Index, Value
from backend_caps.engines.source.library import forget_types
from backend_caps.engines.source.module import ClassDef
from backend_caps.engines.vllm.platforms import CHOOSER, PlatformOutcome, PlatformReader
from backend_caps.engines.vllm.read import BACKEND, classes_at, read_backends
from backend_caps.engines.vllm.registrations import SlotCall, slot_calls

_PLATFORMS = "vllm.platform_plugins"
_OWN_PLATFORMS = "vllm/platforms/__init__.py"
"""Where vLLM names platforms itself, one of them in another distribution."""


@dataclass(slots=True, kw_only=True)
class _Plugin:
    """A distribution while it is read."""

    distribution: EngineDistribution
    folders: tuple[str, ...]
    """Its packages in the tree, each with a slash at its end."""
    calls: list[SlotCall] = field(default_factory=list)
    platforms: list[tuple[Platform, list[PlatformOutcome]]] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    @property
    def paths(self) -> Iterator[str]:
        """The classes that it registers, and that its platforms take."""
        yield from (call.path for call in self.calls if call.path)
        yield from (each.path for _, own in self.platforms for each in own if each.path)

    def note(self, code: str, **values: object) -> None:
        self.problems.append(problem(code, owner=str(self.distribution), **values))

    def has(self, at: str | None) -> bool:
        """Return whether a place, as `file:line`, is in one of its packages."""
        return at is not None and at.startswith(self.folders)


def read_with_plugins(
    tree: Tree, distributions: Sequence[EngineDistribution], *, installed: bool
) -> EngineReading:
    """Read vLLM, and the distributions that extend it.

    Args:
        tree: vLLM's files.
        distributions: those found on the search path.
        installed: whether that is the path of this Python, on which a package of an editable
            installation is found.
    """
    plugins = [_opened(tree, each, installed=installed) for each in distributions]
    index = Index(tree)
    for plugin in plugins:
        plugin.calls += (call for folder in plugin.folders for call in slot_calls(index, folder))
        _PlatformsOf(index, plugin).read()
    forget_types()
    named = [path for plugin in plugins for path in plugin.paths]
    lost = {cls: bases for own in plugins for cls, bases in _missing_bases(index, own).items()}
    rootless = (each.path for each, bases in lost.items() if any(map(_is_root, bases)))
    reading = _folded(read_backends(index, [*named, *rootless]), lost, plugins)
    backends = tuple(_owned(each, plugins) for each in reading.backends)
    records = {each.engine_class.path: each for each in backends if each.engine_class}
    finished = (_finished(each, records, reading) for each in plugins)
    return replace(reading, backends=backends, plugins=tuple(filter(None, finished)))


def _missing_bases(index: Index, plugin: _Plugin) -> dict[ClassDef, list[str]]:
    """List the classes of a plugin with bases that this vLLM lacks."""
    classes, prefix = Classes(index), f"{index.tree.package}."
    files = filter(plugin.has, index.heads.files_below({BACKEND}))
    found = {
        each: [
            base.path
            for base in classes.order(each)
            if isinstance(base, External) and base.path.startswith(prefix)
        ]
        for each in index.classes_of(files)
    }
    return {each: bases for each, bases in found.items() if bases}


def _is_root(base: str) -> bool:
    return base.endswith(f".{BACKEND}")


def _folded(
    reading: EngineReading, lost: Mapping[ClassDef, Sequence[str]], plugins: Sequence[_Plugin]
) -> EngineReading:
    """Make one problem of a plugin of its bases that this vLLM lacks."""
    each_alone = {
        problem("engine-base-not-found", at=own.at, name=own.name, base=base)
        for own, bases in lost.items()
        for base in bases
    }
    for plugin in plugins:
        bases = {each: own.at for own, of in lost.items() if plugin.has(own.at) for each in of}
        if bases:
            (first, at), num_others = next(iter(sorted(bases.items()))), len(bases) - 1
            others = f" and {num_others} more" if num_others else ""
            values = {"base": first, "others": others, "at": at, "engine": reading.title}
            plugin.note("engine-plugin-bases-missing", **values)
    problems = tuple(each for each in reading.problems if each not in each_alone)
    return replace(reading, problems=problems)


def _opened(tree: Tree, distribution: EngineDistribution, *, installed: bool) -> _Plugin:
    """Add the packages of a distribution to a tree."""
    modules = filter(None, (target(entry.value) for entry in distribution.entries))
    packages = dict.fromkeys(module.partition(".")[0] for module, _ in modules)
    plugin = _Plugin(distribution=distribution, folders=())
    for package in packages:
        if package == tree.package:
            continue
        sources = (Path(distribution.root), *((None,) if installed else ()))
        found = next(filter(None, (_tree_of(package, each) for each in sources)), None)
        if found is None:
            plugin.note("engine-plugin-not-found", package=package, root=distribution.root)
            continue
        tree.files = ChainMap(dict(tree.files), dict(found.files))
        tree.problems += found.problems
        plugin.folders += (f"{package}/",)
    return plugin


def _tree_of(package: str, source: Path | None) -> Tree | None:
    try:
        return open_tree(package, source)
    except EngineError:
        return None


class _PlatformsOf:
    """Reads the platforms of a plugin."""

    def __init__(self, index: Index, plugin: _Plugin) -> None:
        self._index, self._plugin = index, plugin

    @cached_property
    def _reader(self) -> PlatformReader:
        return PlatformReader(self._index, self._plugin.calls)

    def read(self) -> None:
        """Add the platforms that its entry points answer, and those that vLLM names itself."""
        stated = [*self._of_entries(), *self._of_engine()]
        for definition, platform in {each[0]: each for each in reversed(stated)}.values():
            self._plugin.platforms.append(self._followed(definition, platform))

    def _of_entries(self) -> Iterator[tuple[ClassDef, Platform]]:
        own = self._plugin.distribution
        for entry in own.entries if self._plugin.folders else ():
            if entry.group.strip() == _PLATFORMS:
                found = list(self._of_entry(entry))
                yield from found
                if not found:
                    what = f"what {entry.value} returns"
                    self._plugin.note("engine-platform-not-followed", what=what, at=own.at(entry))

    def _of_entry(self, entry: Entry) -> Iterator[tuple[ClassDef, Platform]]:
        """Follow the function of an entry point to the classes whose paths it returns."""
        module, name = target(entry.value) or ("", "")
        function = self._reader.function(module, name)
        if function is None:
            return
        for guards, value in returns(function.node):
            for path in _texts(self._index, function, value):
                for _, made in classes_at(self._index, path):
                    platform = Platform(
                        entry=f"{entry.name} = {entry.value}",
                        path=made.definition.path,
                        at=made.definition.at,
                        given=condition(guards),
                    )
                    yield made.definition, platform

    def _of_engine(self) -> Iterator[tuple[ClassDef, Platform]]:
        """List the platforms that vLLM names itself, and that are classes of the plugin."""
        module = self._index.parse(_OWN_PLATFORMS)
        for node in () if module is None else ast.walk(module.tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                for _, made in classes_at(self._index, node.value) if "." in node.value else ():
                    definition = made.definition
                    if module is not None and self._plugin.has(definition.at):
                        entry = f"vLLM's own, {module.at(node)}"
                        own = Platform(entry=entry, path=definition.path, at=definition.at)
                        yield definition, own

    def _followed(
        self, definition: ClassDef, platform: Platform
    ) -> tuple[Platform, list[PlatformOutcome]]:
        try:
            chooser, outcomes = self._reader.followed(definition.path)
        except Exception as error:  # noqa: BLE001 - a fault of ours is none of the plugin's
            what = f"{definition.path}.{CHOOSER} ({type(error).__name__}: {error})"
            self._plugin.note("engine-platform-not-followed", what=what, at=definition.at)
            return platform, []
        return replace(platform, chooser=chooser), outcomes


def _texts(index: Index, function: FunctionDef, value: ast.expr) -> Iterator[str]:
    """List the texts that an expression of a function may be."""
    scope = function.module.scope_in(function.node)
    for _, found in index.resolve(value, function.module, (scope,)):
        match found:
            case Value(node=ast.Constant(value=str(text))):
                yield text


def _check_version(plugin: _Plugin, reading: EngineReading) -> None:
    """Note a plugin that is made for another vLLM, by what its metadata requires."""
    package, version = reading.engine, reading.version
    for stated in plugin.distribution.requires:
        try:
            wanted = Requirement(stated)
        except InvalidRequirement:
            continue
        is_engine = wanted.name == package and wanted.marker is None and version is not None
        if is_engine and not wanted.specifier.contains(str(version), prereleases=True):
            plugin.note("engine-plugin-other-version", wanted=str(wanted), engine=reading.title)


def _owned(backend: Backend, plugins: Sequence[_Plugin]) -> Backend:
    """Name the distribution of a class, and the slots that are registered for it."""
    if (found := backend.engine_class) is None:
        return backend
    at = backend.source.declared_at
    owner = next((each for each in plugins if each.has(at)), None)
    if owner is None:
        return backend
    slots = {call.slot for call in owner.calls if call.stored == found.path}
    engine_class = replace(found, registered_as=tuple(sorted(slots)))
    distribution = owner.distribution
    source = Source(
        distribution=distribution.distribution, version=distribution.version, declared_at=at
    )
    return replace(backend, source=source, engine_class=engine_class)


def _finished(
    plugin: _Plugin, records: Mapping[str, Backend], reading: EngineReading
) -> EnginePlugin | None:
    """Return what a report shows of a plugin; None for one without attention backends."""
    classes = [each.name for each in records.values() if plugin.has(each.source.declared_at)]
    if not (plugin.platforms or plugin.calls or classes or plugin.problems):
        return None
    _check_version(plugin, reading)
    own = plugin.distribution
    parts = {
        each.name: each.declaration.parts[0].backend
        for each in reading.backends
        if each.declaration is not None and each.declaration.parts
    }
    return EnginePlugin(
        distribution=own.distribution,
        version=own.version,
        entries=tuple(f"{e.group.strip()}: {e.name} = {e.value}" for e in own.entries),
        platforms=tuple(
            replace(platform, choices=tuple(_choice(each, records) for each in outcomes))
            for platform, outcomes in plugin.platforms
        ),
        registrations=tuple(
            Registration(
                slot=call.slot,
                at=call.at,
                backend=None if call.path is None else _label(call.path, records),
                label=call.text,
                replaces=None if call.is_new else parts.get(call.slot),
                given=call.given,
            )
            for call in plugin.calls
        ),
        backends=tuple(classes),
        problems=tuple(plugin.problems),
    )


def _label(path: str, records: Mapping[str, Backend]) -> str:
    """Return the name of a class's record; the path of one that was not found."""
    return records[path].name if path in records else path


def _choice(outcome: PlatformOutcome, records: Mapping[str, Backend]) -> PlatformChoice:
    found = None if outcome.path is None else records.get(outcome.path)
    return PlatformChoice(
        given=outcome.given,
        backend=None if outcome.path is None else _label(outcome.path, records),
        at=outcome.at if found is None else found.source.declared_at,
        refusal=outcome.refusal,
    )
