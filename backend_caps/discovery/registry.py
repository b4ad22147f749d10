"""The installed backends, with all their problems."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from typing import ClassVar, TypeVar

from pydantic import ValidationError

from backend_caps.capability.backend import Backend, Backends
from backend_caps.capability.declaration import Declaration
from backend_caps.capability.provenance import Problem, Source, Status
from backend_caps.discovery.diagnosis import validation_fault
from backend_caps.discovery.loading import DEADLINE_S, LONGEST_DEADLINE_S, Loading, begin
from backend_caps.discovery.pointer import misnamed
from backend_caps.discovery.scan import AllowList, Claim, installed_release, problem
from backend_caps.errors import CodedError
from backend_caps.resolution.engine import RULE_SETS
from backend_caps.resolution.errors import nearest
from backend_caps.resolution.flags import ServerFlags
from backend_caps.resolution.launch import Launch
from backend_caps.resolution.routing import uses_of
from backend_caps.resolution.rules import Rule, RuleSet
from backend_caps.resolution.uses import Use

_PRECEDENCE = (Status.OK, Status.CONFLICT, Status.BROKEN)
"""The status whose record a name stands for, best first; a skipped record never counts."""
_Model = TypeVar("_Model", Declaration, Rule)


class DiscoveryError(CodedError):
    """Raised for wrong arguments of discovery; a plugin's fault is a `Problem`."""

    codes: ClassVar[Mapping[str, str]] = {
        "string-instead-of-list": "an argument that takes several strings was given one",
        "deadline": "a deadline leaves no time at all, or has no end",
        "repeated-backend": "two backends of a registry made by hand have one name",
    }


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Registry(Backends):
    """Look a backend up by its name; `entries` and `problems` hold what a lookup does not.

    A name maps to the declaration that was read, else to a conflict or a broken record.
    """

    entries: tuple[Backend, ...]
    """Every claim to a name, sorted, with skipped ones and each side of a conflict."""
    problems: tuple[Problem, ...] = ()
    """The problems of no single backend."""
    third_party_rules: tuple[Rule, ...] = ()
    """The rules of the entry-point group `backend_caps.rules`."""
    rule_problems: tuple[Problem, ...] = ()
    """The members of `problems` that may hide third-party rules."""
    remarks: tuple[Problem, ...] = ()
    """The members of `problems` without a fault: rules kept out on purpose, or that print."""
    _by_name: Mapping[str, Backend] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        by_name: dict[str, Backend] = {}
        for status in reversed(_PRECEDENCE):
            by_name |= {entry.name: entry for entry in self.entries if entry.status is status}
        object.__setattr__(self, "_by_name", dict(sorted(by_name.items())))

    @classmethod
    def of(
        cls,
        backends: Iterable[Backend],
        *,
        rules: Iterable[Rule] = (),
        problems: Iterable[Problem] = (),
    ) -> Registry:
        """Make a registry of backends from another source, or written by hand.

        Raises:
            DiscoveryError: `repeated-backend`: two of them that were read have one name.
        """
        entries = tuple(sorted(backends, key=_order))
        names = [entry.name for entry in entries if entry.status is Status.OK]
        for name in names:
            if names.count(name) > 1:
                sources = [str(entry.source) for entry in entries if entry.name == name]
                raise DiscoveryError(
                    "repeated-backend",
                    f"backend {name!r} is given {len(sources)} times: {' and '.join(sources)}. "
                    "Give each name once.",
                )
        return cls(entries=entries, problems=tuple(problems), third_party_rules=tuple(rules))

    @classmethod
    def of_loading(cls, loading: Loading) -> Registry:
        """Wait for the declarations that are loading, and collect them."""
        Declaration.model_rebuild()  # built on first use; now, it overlaps with the child's work
        backends: list[Backend] = []
        rules: list[Rule] = []
        lost = list(loading.scanned.rule_problems)
        remarks: list[Problem] = []
        for loaded in sorted(loading.results(), key=lambda claim: claim.sort_key):
            if loaded.is_backend:
                backends.append(_backend(loaded, loading.scanned.imports))
            else:
                claim, read = _read(loaded, Rule)
                rules += read
                is_lost = claim.status in {Status.BROKEN, Status.CONFLICT}
                (lost if is_lost else remarks).extend(claim.problems)
                lost += _of_unknown_engines(claim, read)
        new = lost[len(loading.scanned.rule_problems) :]
        problems = [*loading.scanned.problems, *new, *remarks]
        registry = cls.of(backends, rules=rules, problems=problems)
        return replace(registry, rule_problems=tuple(lost), remarks=tuple(remarks))

    def __getitem__(self, name: str) -> Backend:
        return self._by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)

    @property
    def left_out(self) -> Mapping[str, Backend]:
        """The backends that the allow-list keeps out, unless another has the name."""
        return {
            entry.name: entry
            for entry in self.entries
            if entry.name not in self and any(each.code == "not-allowed" for each in entry.problems)
        }

    def __repr__(self) -> str:
        return f"Registry({len(self)} backends: {', '.join(self)}; {len(self.problems)} problems)"

    def rules(self, name: str | RuleSet | None = None) -> RuleSet:
        """Return a rule set, built in or given, with what third parties add to it.

        By default that of the installed engine, else the newest; `chosen_because` holds the reason,
        and `problems` the third-party rules that could not be read.

        Raises:
            ResolutionError: there is none of that name.
        """
        if not isinstance(name, RuleSet):
            name = RuleSet.installed() if name is None else RuleSet.builtin(name)
        return name.with_rules(self.third_party_rules).with_problems(self.rule_problems)

    def uses(self, flags: ServerFlags, launch: Launch | None = None) -> tuple[Use, ...]:
        """List which backend runs what in a server with these flags.

        Args:
            flags: the server's.
            launch: what the engine makes of its command line; None where it is not followed.
        """
        return uses_of(flags, self, launch)

    @property
    def fingerprint(self) -> str:
        """A digest that is equal in two processes that see the same plugins."""
        backends = [
            (name, entry.status.value, entry.source.distribution, entry.source.version)
            for name, entry in self.items()
        ]
        rules = [rule.model_dump_json() for rule in self.third_party_rules]
        return hashlib.sha256(json.dumps([backends, rules]).encode()).hexdigest()


def discover(
    path: Sequence[str | PathLike[str]] | None = None,
    *,
    allow: Collection[str] | AllowList | None = None,
    deadline_s: float = DEADLINE_S,
    environ: Mapping[str, str] | None = None,
) -> Registry:
    """Find the installed backends and read what they declare. Faults come as data.

    Args:
        path: folders to search, instead of `sys.path`; imports come from them first.
        allow: distributions to use, or such a list with a name for messages; else those that
            `BACKEND_CAPS_PLUGINS` names; else all.
        deadline_s: how long the reading of one declaration may take.
        environ: the environment to look `BACKEND_CAPS_PLUGINS` up in; else this process's.

    Raises:
        DiscoveryError: `string-instead-of-list`: `path` or `allow` is one string; `deadline`:
            `deadline_s` is not more than 0, or more than a day.
    """
    for argument, value in (("path", path), ("allow", allow)):
        if isinstance(value, str):
            raise DiscoveryError(
                "string-instead-of-list",
                f"{argument}={value!r} is one string; expected several. "
                f"Write {argument}=[{value!r}].",
            )
    if not 0 < deadline_s <= LONGEST_DEADLINE_S:
        raise DiscoveryError(
            "deadline",
            f"deadline_s is {deadline_s:g}; expected more than 0 and at most "
            f"{LONGEST_DEADLINE_S:g}. Give it some seconds.",
        )
    environ = os.environ if environ is None else environ
    return Registry.of_loading(begin(path, allow=allow, deadline_s=deadline_s, environ=environ))


def _order(entry: Backend) -> tuple[str, ...]:
    source = entry.source
    origin = (source.distribution or "", source.version or "", source.declared_at or "")
    return entry.name, entry.status.value, *origin


def _backend(claim: Claim, imports: Sequence[str]) -> Backend:
    claim, read = _read(claim, Declaration)
    declaration, place = next(iter(read), None), claim.declared_at or claim.stated_at
    pointer = None if declaration is None else declaration.implementation
    if pointer and (detail := misnamed(pointer, imports)):
        claim = claim.marked(claim.status, "no-implementation", pointer=pointer, detail=detail)
    return Backend(
        name=claim.name,
        status=claim.status,
        source=Source(distribution=claim.distribution, version=claim.version, declared_at=place),
        declaration=declaration,
        problems=claim.problems,
    )


def _read(claim: Claim, model: type[_Model]) -> tuple[Claim, list[_Model]]:
    """Read an entry's declaration or rules: all of them, or none."""
    try:
        return claim, [model.model_validate_json(each) for each in claim.documents]
    except ValidationError as error:
        detail = validation_fault(error)
        return claim.broken_by("schema", detail=detail, installed=installed_release()), []


def _of_unknown_engines(claim: Claim, rules: Iterable[Rule]) -> Iterator[Problem]:
    """List the problems of rules for rule sets that do not exist."""
    known = ", ".join(sorted(RULE_SETS))
    for rule in rules:
        for engine in sorted(rule.engines - set(RULE_SETS)):
            meant = nearest(engine, RULE_SETS, cutoff=0.6)
            values = {"rule": rule.name, "engine": engine, "known": known, "meant": meant}
            yield problem("unknown-engine", claim=claim, **values)
