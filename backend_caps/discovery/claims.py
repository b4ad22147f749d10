"""An entry point as the scan found it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from backend_caps.capability.status import Problem, Status

BACKENDS = "backend_caps.backends"
"""The entry-point group of declarations; api 1."""
RULES = "backend_caps.rules"
"""The entry-point group of rules."""


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

    @property
    def is_backend(self) -> bool:
        """Whether the name is a backend's; of a later api, too."""
        return self.group.startswith(BACKENDS)

    @property
    def owner(self) -> str:
        """The distribution with its version."""
        return self.distribution if self.version is None else f"{self.distribution} {self.version}"

    def marked(self, status: Status, problem: Problem) -> Claim:
        """Set its status, for one more cause."""
        return replace(self, status=status, problems=(*self.problems, problem))

    def broken_by(self, problem: Problem) -> Claim:
        """Put what keeps it from use before all else that is told of it."""
        return replace(self, status=Status.BROKEN, problems=(problem, *self.problems))

    def __str__(self) -> str:
        kind = "backend" if self.is_backend else "rules" if self.group == RULES else "entry"
        return f"{kind} {self.name!r} of {self.owner} ({self.value})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """What the metadata on a search path says."""

    claims: tuple[Claim, ...]
    problems: tuple[Problem, ...]
    """What no single entry can be blamed for."""
    imports: tuple[str, ...]
    """The `sys.path` on which the objects are to be found."""
    rule_problems: tuple[Problem, ...] = ()
    """Those of `problems` by which rules may be missing."""

    def with_claims(self, claims: Iterable[Claim]) -> Scan:
        """Replace the claims."""
        return replace(self, claims=tuple(claims))

    def with_rule_problems(self, told: Sequence[Problem]) -> Scan:
        """Add problems by which rules may be missing."""
        return replace(
            self,
            problems=(*self.problems, *told),
            rule_problems=(*self.rule_problems, *told),
        )
