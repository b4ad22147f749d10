"""A plugin compared with releases of an engine: what breaks, and since which release."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from backend_caps.capability.provenance import Problem
from backend_caps.compatibility.contact import Contact, Verdict
from backend_caps.compatibility.contacts import contacts
from backend_caps.compatibility.pair import Pair
from backend_caps.compatibility.plugin import Plugin
from backend_caps.compatibility.sources import EngineSource, open_pair
from backend_caps.compatibility.upgrades import brought
from backend_caps.engines.source.files import Tree

Key = tuple[object, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A plugin compared with one release of an engine."""

    plugin: Plugin
    engine: str
    """The engine's package."""
    version: str | None
    source: str
    """Where the engine was read: a file, a folder, or `installed`."""
    contacts: Sequence[Contact]
    findings: Sequence[Contact]
    """What breaks, changed or is unused; after an upgrade, what that brings alone."""
    before: str | None = None
    """The version before the upgrade; None where one release alone is looked at."""
    since: Mapping[Key, str] = field(default_factory=dict)
    """The first release with a finding, by the key of its contact, where an older one has none."""
    required: str | None = None
    """What the plugin's metadata require of the engine; None where they state nothing."""
    is_required: bool | None = None
    """Whether the release is among these; None where nothing is stated."""
    num_unreached: int = 0
    """The plugin's files that no entry point leads to."""
    problems: Sequence[Problem] = ()
    """Files of the plugin that cannot be parsed."""

    @property
    def counts(self) -> Counter[Verdict]:
        """How many points of contact have each verdict."""
        return Counter(each.verdict for each in self.contacts)

    @property
    def breaks(self) -> bool:
        """Whether a finding breaks."""
        return any(each.verdict is Verdict.BREAKS for each in self.findings)

    @property
    def is_open(self) -> bool:
        """Whether nothing breaks as far as it was read, and not all could be."""
        return not self.breaks and (not self.contacts or bool(self.problems))


def compare(plugin: Plugin, engine: Tree) -> Comparison:
    """Compare a plugin with a release of an engine."""
    with _collected_after():
        return _compared(plugin, engine)


@contextmanager
def _collected_after() -> Iterator[None]:
    """Collect garbage after what runs here, and not during it.

    Each pass of the collector would walk millions of nodes, of which none is garbage; a pair is
    one cycle.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
        gc.collect()


def _compared(plugin: Plugin, engine: Tree) -> Comparison:
    pair = open_pair(plugin, engine)
    found = contacts(pair)
    required, is_required = _requirement(plugin, pair)
    problems = [p for p in pair.index.problems if p.code == "engine-file-not-parsed"]
    starts = tuple(f"{path} " for path in plugin.files)
    own = [each for each in problems if each.message.startswith(starts)]
    return Comparison(
        plugin=plugin,
        engine=engine.package,
        version=engine.version,
        source=engine.source,
        contacts=found,
        findings=[each for each in found if each.verdict.is_finding],
        required=required,
        is_required=is_required,
        num_unreached=len(plugin.files.keys() - pair.reached),
        problems=own,
    )


def _requirement(plugin: Plugin, pair: Pair) -> tuple[str | None, bool | None]:
    """Return what a plugin requires of an engine, and whether the version is in it."""
    for text in plugin.requires:
        try:
            wanted = Requirement(text)
        except InvalidRequirement:
            continue
        is_engines = canonicalize_name(wanted.name) == canonicalize_name(pair.engine)
        if is_engines and wanted.specifier:
            version, specifier = pair.version, wanted.specifier
            is_in = None if version is None else specifier.contains(version, prereleases=True)
            return str(specifier), is_in
    return None, None


def upgrade(old: Comparison, new: Comparison) -> Comparison:
    """Keep of a comparison what an upgrade from another release brings."""
    return replace(new, before=old.version, findings=[*brought(old.contacts, new.contacts)])


def since(found: Comparison, older: Iterable[EngineSource]) -> dict[Key, str]:
    """Find the first release with each finding that breaks.

    Args:
        found: a comparison with one release.
        older: releases before it, the newest first. They are opened until each finding is
            absent from one, or none is left.
    """
    first: dict[Key, str] = {}
    open_keys = {each.key: found.version or "" for each in found.findings if _is_break(each)}
    files = {each.at.rpartition(":")[0] for each in found.findings if _is_break(each)}
    for source in older:
        if not open_keys:
            break
        tree = source.open()
        there = _broken(found.plugin, tree, files)
        for key in [each for each in open_keys if each not in there]:
            first[key] = open_keys.pop(key)
        open_keys = dict.fromkeys(open_keys, tree.version or "")
    return first


def _is_break(contact: Contact) -> bool:
    return contact.verdict is Verdict.BREAKS


def _broken(plugin: Plugin, engine: Tree, files: Collection[str]) -> set[Key]:
    with _collected_after():
        found = contacts(open_pair(plugin, engine), files)
    return {each.key for each in found if _is_break(each)}
