"""What the metadata on a path claims: bytes first, and nothing is imported.

A distribution is its normalised name. Every metadata folder claims one, with entry points or
not: otherwise an old release further down the path would come back to life. The first on the
path wins, within a folder a dist-info before an egg-info.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from backend_caps.capability.status import Problem, Status
from backend_caps.discovery import problems
from backend_caps.discovery.claims import BACKENDS, RULES, Claim, Scan
from backend_caps.discovery.entries import Entry, mentions_us, our_entries
from backend_caps.discovery.installed import installed_release
from backend_caps.discovery.metadata import headers, named
from backend_caps.discovery.places import Place, place_at
from backend_caps.discovery.search import Search, identity

_ENTRY_POINTS = "entry_points.txt"


@dataclass(slots=True)
class _Info:
    """A metadata folder."""

    place: Place
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
        found.tell(problems.no_such_folder(folder), hides_rules=True)
    seen: set[tuple[int, int]] = set()
    holders: dict[str, list[_Info]] = {}
    losers: list[tuple[_Info, _Info]] = []
    for place in _places(search.searched, seen):
        for info in sorted(_infos(place), key=lambda info: info.rank):
            _contend(info, holders, losers)
    for infos in holders.values():
        for info in infos:
            found.add(_settled(claim, infos) for claim in found.read(info))
    for info, winner in losers:
        found.add(
            claim.marked(Status.SKIPPED, problems.shadowed(claim, info.place.root, winner.path))
            for claim in found.read(info)
        )
    _look_in_working_directory(search, seen, found)
    return Scan(
        claims=tuple(found.claims),
        problems=tuple(found.problems),
        imports=search.imports,
        rule_problems=tuple(found.rule_problems),
    )


def _places(path: Iterable[str], seen: set[tuple[int, int]]) -> Iterator[Place]:
    """Open each entry once, by whatever name it comes."""
    for root in path:
        known = identity(root)
        if known is None or known in seen:
            continue
        seen.add(known)
        place = place_at(root)
        if place is not None:
            yield place


def _infos(place: Place) -> list[_Info]:
    return [_Info(place, folder, *named(folder, place.root)) for folder in place.folders()]


def _contend(
    info: _Info, holders: dict[str, list[_Info]], losers: list[tuple[_Info, _Info]]
) -> None:
    """Let a metadata folder claim its distribution's name."""
    # A leftover of pip's claims its own name, tilde included: nobody else's.
    winners = holders.setdefault(info.name, [])
    if not winners or (winners[0].place is info.place and winners[0].rank == info.rank):
        winners.append(info)
    else:
        losers.append((info, winners[0]))


def _settled(claim: Claim, infos: list[_Info]) -> Claim:
    """Refuse what a leftover or one of two versions claims."""
    if infos[0].name.startswith("~"):
        return claim.marked(Status.SKIPPED, problems.leftover(claim, infos[0].path))
    if len(infos) > 1:
        folders = [info.folder for info in infos]
        problem = problems.two_versions(claim, infos[0].place.root, folders)
        return claim.marked(Status.CONFLICT, problem)
    return claim


def _look_in_working_directory(
    search: Search, seen: set[tuple[int, int]], found: _Findings
) -> None:
    """Tell what stands in the folder that is not searched, unless the path names it again."""
    for place in _places(() if search.unsearched is None else (search.unsearched,), seen):
        for info in _infos(place):
            found.add(
                claim.marked(Status.SKIPPED, problems.working_directory(claim, place.root))
                for claim in found.read(info)
            )


@dataclass(slots=True)
class _Findings:
    """What a scan has come upon."""

    claims: list[Claim] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    rule_problems: list[Problem] = field(default_factory=list)

    def add(self, claims: Iterable[Claim]) -> None:
        """Keep claims."""
        self.claims.extend(claims)

    def tell(self, problem: Problem, *, hides_rules: bool) -> None:
        """Keep a problem, and whether rules may be missing by it."""
        self.problems.append(problem)
        if hides_rules:
            self.rule_problems.append(problem)

    def read(self, info: _Info) -> list[Claim]:
        """Read the claims of one metadata folder; METADATA only where there are any."""
        data = self._bytes(info, _ENTRY_POINTS)
        if data is None or not mentions_us(data):
            return []
        entries = list(our_entries(data))
        if not entries:
            return []
        metadata = self._bytes(info, "METADATA") or self._bytes(info, "PKG-INFO") or b""
        says = headers(metadata, info.name, info.version)
        backends = {entry.name for entry in entries if entry.group == BACKENDS}
        claims: list[Claim] = []
        for entry in entries:
            stated_at = f"{info.path}/{_ENTRY_POINTS}:{entry.line}"
            if entry.name is None:
                problem = problems.malformed_entry(says.name, stated_at, entry.text)
                self.tell(problem, hides_rules=entry.group == RULES)
            elif entry.group in {BACKENDS, RULES} or entry.name not in backends:
                claims.append(
                    _judged(
                        entry,
                        Claim(
                            group=entry.group,
                            name=entry.name,
                            value=entry.value,
                            distribution=says.name,
                            version=says.version,
                            stated_at=stated_at,
                            requires=says.requires,
                        ),
                    )
                )
        return claims

    def _bytes(self, info: _Info, file: str) -> bytes | None:
        try:
            return info.place.read(info.folder, file)
        except OSError as error:
            cause = error.strerror or str(error)
            problem = problems.unreadable(f"{info.path}/{file}", cause)
            self.tell(problem, hides_rules=file == _ENTRY_POINTS)
            return None


def _judged(entry: Entry, claim: Claim) -> Claim:
    """Refuse what cannot be loaded for how it is written."""
    if claim.group not in {BACKENDS, RULES}:
        return claim.marked(Status.BROKEN, problems.unknown_api(claim, installed_release()))
    if not entry.is_valid:
        problem = problems.malformed_entry(claim.owner, claim.stated_at, entry.text)
        return claim.marked(Status.BROKEN, problem)
    return claim
