"""What the metadata on a path claims: bytes first, and nothing is imported.

A distribution is its normalised name. Every metadata folder claims one, with entry points or
not: otherwise an old release further down the path would come back to life. The first on the
path wins, within a folder a dist-info before an egg-info.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from backend_caps.capability.status import Problem, Status
from backend_caps.discovery.claims import BACKENDS, RULES, Claim, Scan
from backend_caps.discovery.metadata import (
    Entry,
    PathEntry,
    headers,
    mentions_us,
    named,
    our_entries,
)
from backend_caps.discovery.problems import installed_release, problem
from backend_caps.discovery.process import Search, identity

_ENTRY_POINTS = "entry_points.txt"


@dataclass(slots=True)
class _Info:
    """A metadata folder."""

    place: PathEntry
    folder: str
    name: str
    version: str | None

    @property
    def rank(self) -> bool:
        """Whether it comes second in its place: eggs after the rest."""
        return not self.folder.lower().endswith(".dist-info")

    @property
    def path(self) -> str:
        return f"{self.place.root}/{self.folder}"


def scan(search: Search) -> Scan:
    """List what the metadata claims: entries, and why some of them do not count."""
    found = _Findings()
    for folder in search.absent():
        found.add_problem("no-such-folder", hides_rules=True, folder=folder)
    seen: set[tuple[int, int]] = set()
    holders: dict[str, list[_Info]] = {}
    losers: list[tuple[_Info, _Info]] = []
    for place in _places(search.searched, seen):
        for info in sorted(_infos(place), key=lambda info: info.rank):
            # A leftover of pip's claims its own name, tilde included.
            winners = holders.setdefault(info.name, [])
            if not winners or (winners[0].place is info.place and winners[0].rank == info.rank):
                winners.append(info)
            else:
                losers.append((info, winners[0]))
    for infos in holders.values():
        for info in infos:
            found.claims += [_settled(claim, infos) for claim in found.read(info)]
    for info, winner in losers:
        found.claims += [
            claim.marked(Status.SKIPPED, "shadowed", folder=info.place.root, winner=winner.path)
            for claim in found.read(info)
        ]
    # The working directory is not searched, unless the path names it again.
    for place in _places(() if search.unsearched is None else (search.unsearched,), seen):
        for info in _infos(place):
            found.claims += [
                claim.marked(Status.SKIPPED, "working-directory", folder=place.root)
                for claim in found.read(info)
            ]
    return Scan(
        claims=tuple(found.claims),
        problems=tuple(found.problems),
        imports=search.imports,
        rule_problems=tuple(found.rule_problems),
    )


def _places(path: Iterable[str], seen: set[tuple[int, int]]) -> Iterator[PathEntry]:
    """Open each entry once, by whatever name it comes."""
    for root in path:
        known = identity(root)
        if known is None or known in seen:
            continue
        seen.add(known)
        place = PathEntry.at(root)
        if place is not None:
            yield place


def _infos(place: PathEntry) -> list[_Info]:
    return [_Info(place, folder, *named(folder, place.root)) for folder in place.folders]


def _settled(claim: Claim, infos: list[_Info]) -> Claim:
    """Refuse what a leftover or one of two versions claims."""
    if infos[0].name.startswith("~"):
        return claim.marked(Status.SKIPPED, "leftover", folder=infos[0].path)
    if len(infos) > 1:
        folders = " and ".join(info.folder for info in infos)
        root = infos[0].place.root
        return claim.marked(Status.CONFLICT, "two-versions", root=root, folders=folders)
    return claim


@dataclass(slots=True)
class _Findings:
    """What a scan has come upon."""

    claims: list[Claim] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    rule_problems: list[Problem] = field(default_factory=list)

    def add_problem(self, code: str, *, hides_rules: bool, **values: object) -> None:
        """Keep a problem, and whether rules may be missing by it."""
        self.problems.append(problem(code, **values))
        if hides_rules:
            self.rule_problems.append(self.problems[-1])

    def read(self, info: _Info) -> Iterator[Claim]:
        """Read the claims of one metadata folder; METADATA only where there are any."""
        data = self._bytes(info, _ENTRY_POINTS)
        entries = list(our_entries(data)) if data is not None and mentions_us(data) else []
        if not entries:
            return
        metadata = self._bytes(info, "METADATA") or self._bytes(info, "PKG-INFO") or b""
        says = headers(metadata, info.name, info.version)
        backends = {entry.name for entry in entries if entry.group == BACKENDS}
        for entry in entries:
            stated_at = f"{info.path}/{_ENTRY_POINTS}:{entry.line}"
            if entry.name is None:
                self.add_problem(
                    "malformed-entry",
                    hides_rules=entry.group == RULES,
                    owner=says.name,
                    stated_at=stated_at,
                    text=entry.text,
                )
            elif entry.group in {BACKENDS, RULES} or entry.name not in backends:
                claim = Claim(
                    group=entry.group,
                    name=entry.name,
                    value=entry.value,
                    distribution=says.name,
                    version=says.version,
                    stated_at=stated_at,
                    requires=says.requires,
                )
                yield _judged(entry, claim)

    def _bytes(self, info: _Info, file: str) -> bytes | None:
        try:
            return info.place.read(info.folder, file)
        except OSError as error:
            cause, path = error.strerror or str(error), f"{info.path}/{file}"
            hides_rules = file == _ENTRY_POINTS
            self.add_problem("unreadable", hides_rules=hides_rules, path=path, cause=cause)
            return None


def _judged(entry: Entry, claim: Claim) -> Claim:
    """Refuse what cannot be loaded for how it is written."""
    if claim.group not in {BACKENDS, RULES}:
        return claim.marked(Status.BROKEN, "unknown-api", installed=installed_release())
    if not entry.is_valid:
        return claim.marked(
            Status.BROKEN,
            "malformed-entry",
            owner=claim.owner,
            stated_at=claim.stated_at,
            text=entry.text,
        )
    return claim
