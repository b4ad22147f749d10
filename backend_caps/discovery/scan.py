"""What the metadata on a path claims, and which claims are admitted: nothing is imported.

A distribution is its normalised name. Every metadata folder claims one, with entry points or
not: otherwise an old release further down the path would come back to life. The first on the
path wins, within a folder a dist-info before an egg-info.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from backend_caps.capability.provenance import Problem, Status, problem_texts
from backend_caps.discovery.metadata import PathEntry, headers, named, normalised, our_entries
from backend_caps.discovery.process import Search, identity
from backend_caps.resolution.errors import nearest

BACKENDS = "backend_caps.backends"
"""The entry-point group of declarations; api 1."""
RULES = "backend_caps.rules"
"""The entry-point group of rules."""
PLUGINS = "BACKEND_CAPS_PLUGINS"
"""The environment variable that names the distributions to use, separated by commas."""


def problem(code: str, **values: object) -> Problem:
    """Fill in the texts that a code has in `problems.toml`."""
    return problem_texts(__file__)[code].problem(code, **values)


def installed_release(distribution: str = "backend-caps") -> str:
    """Return this package's name with its version."""
    # Only some problems need it, and this import takes half as long as a scan.
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415

    try:
        return f"{distribution} {version(distribution)}"
    except PackageNotFoundError:
        return f"{distribution} (not installed, run from its source)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One entry point: a name, and where the object behind it is said to be."""

    group: str
    name: str
    value: str
    """`module:ATTRIBUTE`, as written."""
    distribution: str
    """Normalised, as PEP 503 says."""
    version: str | None
    stated_at: str
    """`file:line` of the entry point."""
    requires: str | None = None
    """What the distribution's metadata requires of backend-caps."""
    status: Status = Status.OK
    """`OK` as long as nothing keeps it from being loaded."""
    problems: tuple[Problem, ...] = ()
    documents: Sequence[str] = ()
    """Once it is loaded, what it declares, as JSON."""
    declared_at: str | None = None
    """`file:line` of the object, where that was reached."""

    @property
    def is_backend(self) -> bool:
        """Whether the name is a backend's; of a later api, too."""
        return self.group.startswith(BACKENDS)

    @property
    def owner(self) -> str:
        """The distribution with its version."""
        return self.distribution if self.version is None else f"{self.distribution} {self.version}"

    @property
    def sort_key(self) -> tuple[str, ...]:
        """Order claims by what makes them."""
        return self.distribution, self.version or "", self.name, self.stated_at

    @property
    def module(self) -> str:
        """The module that is imported for it."""
        return self.value.partition(":")[0]

    @property
    def wanted(self) -> str:
        """The backend-caps that its distribution requires, for a sentence."""
        return self.requires or "backend-caps in no stated version"

    @property
    def kind(self) -> str:
        """What it declares, in a word."""
        return "backend" if self.is_backend else "rules"

    @property
    def expected_type(self) -> str:
        """What its object has to be, for a sentence."""
        return "a Declaration" if self.is_backend else "a Rule or a sequence of Rules"

    def marked(self, status: Status, code: str, **values: object) -> Claim:
        """Set its status, for one more problem of a code."""
        own = problem(code, claim=self, **values)
        return replace(self, status=status, problems=(*self.problems, own))

    def broken_by(self, code: str, **values: object) -> Claim:
        """Mark it as broken; the cause comes before its other problems."""
        cause = problem(code, claim=self, **values)
        return replace(self, status=Status.BROKEN, problems=(cause, *self.problems))

    def __str__(self) -> str:
        kind = self.kind if self.is_backend or self.group == RULES else "entry"
        return f"{kind} {self.name!r} of {self.owner} ({self.value})"


@dataclass(slots=True, kw_only=True)
class Scan:
    """What the metadata on a search path says."""

    imports: tuple[str, ...]
    """The `sys.path` on which the objects are to be found."""
    claims: list[Claim] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    """What no single entry can be blamed for."""
    rule_problems: list[Problem] = field(default_factory=list)
    """Those of `problems` by which rules may be missing."""

    def add_problem(self, found: Problem, *, hides_rules: bool = True) -> None:
        """Add a problem, and whether rules may be missing by it."""
        self.problems.append(found)
        if hides_rules:
            self.rule_problems.append(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class AllowList:
    """The distributions that may be loaded, normalised."""

    name: str
    """What the list is called where it was written."""
    allowed: frozenset[str]

    @classmethod
    def named(cls, name: str, distributions: Iterable[str]) -> AllowList:
        """Allow these distributions, whatever the spelling of their names."""
        names = map(normalised, distributions)
        return cls(name=name, allowed=frozenset(each for each in names if each))

    @classmethod
    def of(
        cls, allow: Collection[str] | AllowList | None, environ: Mapping[str, str]
    ) -> AllowList | None:
        """Take the caller's list, else the environment's; None allows all.

        An empty list allows nothing: what is set and blank was meant to keep plugins out.
        """
        if isinstance(allow, AllowList):
            return allow
        if allow is not None:
            return cls.named("allow", allow)
        return cls.named(PLUGINS, environ[PLUGINS].split(",")) if PLUGINS in environ else None


def admit(scanned: Scan, allow: AllowList | None) -> Scan:
    """Refuse what is not allowed, and then what several still claim."""
    if allow is not None:
        _check_installed(scanned, allow)
        names = ", ".join(sorted(allow.allowed)) or "nothing"
        scanned.claims = [
            claim
            if claim.distribution in allow.allowed
            else claim.marked(Status.SKIPPED, "not-allowed", allow_list=allow.name, allowed=names)
            for claim in scanned.claims
        ]
    scanned.claims = list(_one_owner(list(_one_entry(scanned.claims))))
    return scanned


def _check_installed(scanned: Scan, allow: AllowList) -> None:
    """Add a problem for each allowed distribution that has no claim."""
    backends = {claim.name: claim.distribution for claim in scanned.claims if claim.is_backend}
    known = sorted({claim.distribution for claim in scanned.claims})
    for name in sorted(allow.allowed.difference(known)):
        # The list takes distributions; a backend's name in it is an easy slip.
        meant = nearest(name, known, cutoff=0.6) or backends.get(name)
        own = {"name": name, "allow_list": allow.name, "known": ", ".join(known) or "none"}
        scanned.add_problem(problem("not-installed", meant=meant, **own))


def _one_entry(claims: Iterable[Claim]) -> Iterator[Claim]:
    """Fold a distribution's repeated entry; two objects under one name are a conflict."""
    entries: dict[tuple[str | None, ...], list[Claim]] = {}
    for claim in claims:
        # What is set aside already stands for itself: a shadowed release, another version.
        apart = None if claim.status is Status.OK else claim.stated_at
        key = claim.distribution, claim.group, claim.name, apart
        entries.setdefault(key, []).append(claim)
    for first, *others in entries.values():
        if all(claim.value == first.value for claim in others):
            yield first
        else:
            values = " and ".join(claim.value for claim in (first, *others))
            yield first.marked(Status.CONFLICT, "duplicate-entry", values=values)


def _one_owner(claims: list[Claim]) -> Iterator[Claim]:
    """Refuse every claim to a backend's name that another distribution claims too."""
    rivals: dict[str, list[Claim]] = {}
    for claim in claims:
        if claim.group == BACKENDS and claim.status is Status.OK:
            rivals.setdefault(claim.name, []).append(claim)
    for claim in claims:
        several = rivals.get(claim.name, ())
        if claim not in several or several == [claim]:
            yield claim
            continue
        owners = " and ".join(sorted(f"{each.owner} ({each.value})" for each in several))
        often = "twice" if len(several) == len("ab") else f"{len(several)} times"
        status, code = Status.CONFLICT, "declared-twice"
        yield claim.marked(status, code, name=claim.name, how_often=often, owners=owners)


_ENTRY_POINTS = "entry_points.txt"


@dataclass(slots=True)
class _Info:
    """A metadata folder."""

    place: PathEntry
    folder: str
    name: str
    version: str | None

    @property
    def is_egg(self) -> bool:
        """Whether it gives way to the dist-infos of its place."""
        return not self.folder.lower().endswith(".dist-info")

    @property
    def path(self) -> str:
        return f"{self.place.root}/{self.folder}"


def scan(search: Search) -> Scan:
    """List what the metadata claims: entries, and why some of them do not count."""
    found = Scan(imports=search.imports)
    for folder in search.named:
        if identity(folder) is None:
            found.add_problem(problem("no-such-folder", folder=folder))
    seen: set[tuple[int, int]] = set()
    holders: dict[str, list[_Info]] = {}
    losers: list[tuple[_Info, _Info]] = []
    for info in _infos(search.searched, seen):
        # A leftover of pip's claims its own name, tilde included.
        winners = holders.setdefault(info.name, [])
        if not winners or (winners[0].place is info.place and winners[0].is_egg == info.is_egg):
            winners.append(info)
        else:
            losers.append((info, winners[0]))
    for infos in holders.values():
        for info in infos:
            found.claims += [_settled(claim, infos) for claim in _claims(info, found)]
    for info, winner in losers:
        values = {"folder": info.place.root, "winner": winner.path}
        found.claims += _skipped(_claims(info, found), "shadowed", **values)
    # The working directory is not searched, unless the path names it again.
    for info in _infos(() if search.unsearched is None else (search.unsearched,), seen):
        folder = info.place.root
        found.claims += _skipped(_claims(info, found), "working-directory", folder=folder)
    return found


def _infos(path: Iterable[str], seen: set[tuple[int, int]]) -> Iterator[_Info]:
    """List the metadata folders of each entry once, by whatever name it comes; eggs last."""
    for root in path:
        known = identity(root)
        if known is None or known in seen:
            continue
        seen.add(known)
        if (place := PathEntry.at(root)) is not None:
            infos = (_Info(place, folder, *named(folder, root)) for folder in place.folders)
            yield from sorted(infos, key=lambda info: info.is_egg)


def _settled(claim: Claim, infos: list[_Info]) -> Claim:
    """Refuse what a leftover or one of two versions claims."""
    if infos[0].name.startswith("~"):
        return claim.marked(Status.SKIPPED, "leftover", folder=infos[0].path)
    if len(infos) > 1:
        folders = " and ".join(info.folder for info in infos)
        root = infos[0].place.root
        return claim.marked(Status.CONFLICT, "two-versions", root=root, folders=folders)
    return claim


def _skipped(claims: Iterable[Claim], code: str, **values: object) -> Iterator[Claim]:
    return (claim.marked(Status.SKIPPED, code, **values) for claim in claims)


def _claims(info: _Info, found: Scan) -> Iterator[Claim]:
    """Read the claims of one metadata folder; METADATA only where there are any."""
    entries = list(our_entries(_bytes(info, _ENTRY_POINTS, found) or b""))
    if not entries:
        return
    metadata = _bytes(info, "METADATA", found) or _bytes(info, "PKG-INFO", found) or b""
    distribution, version, requires = headers(metadata, info.name, info.version)
    backends = {entry.name for entry in entries if entry.group == BACKENDS}
    for entry in entries:
        stated_at = f"{info.path}/{_ENTRY_POINTS}:{entry.line}"
        malformed = {"stated_at": stated_at, "text": entry.text}
        is_known = entry.group in {BACKENDS, RULES}
        if entry.name is None:
            bad = problem("malformed-entry", owner=distribution, **malformed)
            found.add_problem(bad, hides_rules=entry.group == RULES)
        elif is_known or entry.name not in backends:
            claim = Claim(
                group=entry.group,
                name=entry.name,
                value=entry.value,
                distribution=distribution,
                version=version,
                stated_at=stated_at,
                requires=requires,
            )
            if not is_known:
                claim = claim.broken_by("unknown-api", installed=installed_release())
            elif not entry.is_valid:
                claim = claim.broken_by("malformed-entry", owner=claim.owner, **malformed)
            yield claim


def _bytes(info: _Info, file: str, found: Scan) -> bytes | None:
    try:
        return info.place.read(info.folder, file)
    except OSError as error:
        own = {"path": f"{info.path}/{file}", "cause": error.strerror or str(error)}
        found.add_problem(problem("unreadable", **own), hides_rules=file == _ENTRY_POINTS)
        return None
