"""The distributions that extend an engine by its own entry points; nothing is imported."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from email.parser import BytesHeaderParser

from backend_caps.discovery.metadata import Entry, PathEntry, entries_of, named, normalised
from backend_caps.discovery.process import Search, identity

GROUPS: Mapping[str, re.Pattern[str]] = {
    "vllm": re.compile(r"\s*vllm\.(?:platform|general)_plugins\s*")
}
"""The groups of entry points, by engine, through which attention backends come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineDistribution:
    """A distribution with entry points of an engine."""

    distribution: str
    """Normalised, as PEP 503 says."""
    version: str | None
    root: str
    """The folder or archive on the path that has its metadata."""
    metadata: str
    """Its metadata folder in the root."""
    entries: tuple[Entry, ...]
    """In the order of the file."""
    requires: tuple[str, ...]
    """What its metadata requires, as they state it."""

    def __str__(self) -> str:
        return " ".join(part for part in (self.distribution, self.version) if part)

    def at(self, entry: Entry) -> str:
        """Return the place of an entry, as `file:line`."""
        return f"{self.metadata}/entry_points.txt:{entry.line}"


def engine_distributions(engine: str, search: Search) -> Iterator[EngineDistribution]:
    """List the distributions on a search path that extend an engine.

    The first of a name wins, as for imports. What cannot be read is left out: nothing that an
    engine could load either.

    Args:
        engine: one of `GROUPS`; another one has none.
        search: where to look.
    """
    if (groups := GROUPS.get(engine)) is None:
        return
    names: set[str] = set()
    roots: dict[tuple[int, int] | None, str] = {}
    for root in search.searched:
        roots.setdefault(identity(root), root)
    for place in filter(None, map(PathEntry.at, roots.values())):
        for folder in place.folders:
            found = _distribution(place, folder, groups)
            if found.distribution not in names and found.entries:
                yield found
            names.add(found.distribution)


def _distribution(place: PathEntry, folder: str, groups: re.Pattern[str]) -> EngineDistribution:
    name, version = named(folder, place.root)
    data = _read(place, folder, "entry_points.txt")
    entries = tuple(each for each in entries_of(data, groups) if each.is_valid)
    requires: Sequence[object] = ()
    if entries:
        stated = BytesHeaderParser().parsebytes(_read(place, folder, "METADATA"))
        name = normalised(str(stated.get("Name") or name))
        version = str(stated.get("Version") or version or "").strip() or None
        requires = stated.get_all("Requires-Dist", ())
    return EngineDistribution(
        distribution=name,
        version=version,
        root=place.root,
        metadata=folder,
        entries=entries,
        requires=tuple(map(str, requires)),
    )


def _read(place: PathEntry, folder: str, file: str) -> bytes:
    try:
        return place.read(folder, file) or b""
    except OSError:
        return b""
