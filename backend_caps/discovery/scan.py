"""The entry points in the metadata on a path, and which are admitted; nothing is imported.

A distribution is identified by its normalised name. Every metadata folder claims one, with entry
points or not: otherwise an old release further down the path would take effect again. The first
on the path wins, within a folder a dist-info before an egg-info.
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
    """One entry point: a name, and the place of its object."""

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
    """The version of backend-caps that the distribution's metadata requires."""
    status: Status = Status.OK
    """`OK` while it may be loaded."""
    problems: tuple[Problem, ...] = ()
    documents: Sequence[str] = ()
    """Its declaration or rules as JSON, once it is loaded."""
    declared_at: str | None = None
    """`file:line` of the object, once it is loaded."""

    @property
    def is_backend(self) -> bool:
        """Whether the name is a backend's, also under a later api."""
        return self.group.startswith(BACKENDS)

    @property
    def owner(self) -> str:
        """The distribution with its version."""
        return self.distribution if self.version is None else f"{self.distribution} {self.version}"

    @property
    def sort_key(self) -> tuple[str, ...]:
        """Order claims by distribution, then by name and place."""
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
        """The word for what it declares."""
        return "backend" if self.is_backend else "rules"

    @property
    def expected_type(self) -> str:
        """The type that its object must have, for a sentence."""
        return "a Declaration" if self.is_backend else "a Rule or a sequence of Rules"

    def marked(self, status: Status, code: str, **values: object) -> Claim:
        """Return the claim with this status and one more problem."""
        added = problem(code, claim=self, **values)
        return replace(self, status=status, problems=(*self.problems, added))

    def broken_by(self, code: str, **values: object) -> Claim:
        """Return the claim as broken, with the cause before its other problems."""
        cause = problem(code, claim=self, **values)
        return replace(self, status=Status.BROKEN, problems=(cause, *self.problems))

    def __str__(self) -> str:
        kind = self.kind if self.is_backend or self.group == RULES else "entry"
        return f"{kind} {self.name!r} of {self.owner} ({self.value})"


@dataclass(slots=True, kw_only=True)
class Scan:
    """The claims in the metadata on a search path."""

    imports: tuple[str, ...]
    """The `sys.path` to import the objects from."""
    claims: list[Claim] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    """The problems of no single entry."""
    rule_problems: list[Problem] = field(default_factory=list)
    """The members of `problems` that may hide rules."""

    def add_problem(self, added: Problem, *, hides_rules: bool = True) -> None:
        """Add a problem, which may hide rules."""
        self.problems.append(added)
        if hides_rules:
            self.rule_problems.append(added)


@dataclass(frozen=True, slots=True, kw_only=True)
class AllowList:
    """The distributions that may be loaded, normalised."""

    name: str
    """The name of the list in its source, such as the variable's."""
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
        """Return the caller's list, else the environment's; None allows all.

        An empty list allows nothing: a blank variable is meant to keep plugins out.
        """
        if isinstance(allow, AllowList):
            return allow
        if allow is not None:
            return cls.named("allow", allow)
        return cls.named(PLUGINS, environ[PLUGINS].split(",")) if PLUGINS in environ else None


def admit(scanned: Scan, allow: AllowList | None) -> Scan:
    """Refuse claims that are not allowed, then names with several claims left."""
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
        values = {"name": name, "allow_list": allow.name, "known": ", ".join(known) or "none"}
        scanned.add_problem(problem("not-installed", meant=meant, **values))


def _one_entry(claims: Iterable[Claim]) -> Iterator[Claim]:
    """Fold a distribution's repeated entry; two objects under one name are a conflict."""
    entries: dict[tuple[str | None, ...], list[Claim]] = {}
    for claim in claims:
        # A claim that was refused before, such as a shadowed release's, is kept by itself.
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
        """Whether dist-infos of the same place take precedence."""
        return not self.folder.lower().endswith(".dist-info")

    @property
    def path(self) -> str:
        return f"{self.place.root}/{self.folder}"


def scan(search: Search) -> Scan:
    """List the entries in the metadata, and the problems of those that do not count."""
    scanned = Scan(imports=search.imports)
    for folder in search.named:
        if identity(folder) is None:
            scanned.add_problem(problem("no-such-folder", folder=folder))
    seen: set[tuple[int, int]] = set()
    holders: dict[str, list[_Info]] = {}
    losers: list[tuple[_Info, _Info]] = []
    for info in _infos(search.searched, seen):
        # pip renames a folder that it could not remove to `~name`: that is another name here.
        winners = holders.setdefault(info.name, [])
        if not winners or (winners[0].place is info.place and winners[0].is_egg == info.is_egg):
            winners.append(info)
        else:
            losers.append((info, winners[0]))
    for infos in holders.values():
        for info in infos:
            scanned.claims += [_settled(claim, infos) for claim in _claims(info, scanned)]
    for info, winner in losers:
        values = {"folder": info.place.root, "winner": winner.path}
        scanned.claims += _skipped(_claims(info, scanned), "shadowed", **values)
    # The working directory is not searched, unless the path names it again.
    for info in _infos(() if search.unsearched is None else (search.unsearched,), seen):
        folder = info.place.root
        scanned.claims += _skipped(_claims(info, scanned), "working-directory", folder=folder)
    return scanned


def _infos(path: Iterable[str], seen: set[tuple[int, int]]) -> Iterator[_Info]:
    """Yield the metadata folders of each path entry once, eggs last."""
    for root in path:
        known = identity(root)
        if known is None or known in seen:
            continue
        seen.add(known)
        if (place := PathEntry.at(root)) is not None:
            infos = (_Info(place, folder, *named(folder, root)) for folder in place.folders)
            yield from sorted(infos, key=lambda info: info.is_egg)


def _settled(claim: Claim, infos: list[_Info]) -> Claim:
    """Refuse a claim of a leftover of pip, or of one of two versions."""
    if infos[0].name.startswith("~"):
        return claim.marked(Status.SKIPPED, "leftover", folder=infos[0].path)
    if len(infos) > 1:
        folders = " and ".join(info.folder for info in infos)
        root = infos[0].place.root
        return claim.marked(Status.CONFLICT, "two-versions", root=root, folders=folders)
    return claim


def _skipped(claims: Iterable[Claim], code: str, **values: object) -> Iterator[Claim]:
    return (claim.marked(Status.SKIPPED, code, **values) for claim in claims)


def _claims(info: _Info, scanned: Scan) -> Iterator[Claim]:
    """Read the claims of one metadata folder; METADATA only where there are any."""
    entries = list(our_entries(_bytes(info, _ENTRY_POINTS, scanned) or b""))
    if not entries:
        return
    metadata = _bytes(info, "METADATA", scanned) or _bytes(info, "PKG-INFO", scanned) or b""
    distribution, version, requires = headers(metadata, info.name, info.version)
    backends = {entry.name for entry in entries if entry.group == BACKENDS}
    for entry in entries:
        stated_at = f"{info.path}/{_ENTRY_POINTS}:{entry.line}"
        malformed = {"stated_at": stated_at, "text": entry.text}
        is_known = entry.group in {BACKENDS, RULES}
        if entry.name is None:
            bad = problem("malformed-entry", owner=distribution, **malformed)
            scanned.add_problem(bad, hides_rules=entry.group == RULES)
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


def _bytes(info: _Info, file: str, scanned: Scan) -> bytes | None:
    try:
        return info.place.read(info.folder, file)
    except OSError as error:
        values = {"path": f"{info.path}/{file}", "cause": error.strerror or str(error)}
        scanned.add_problem(problem("unreadable", **values), hides_rules=file == _ENTRY_POINTS)
        return None
