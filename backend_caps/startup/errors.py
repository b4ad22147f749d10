"""What can be wrong where a server starts, alone or with other ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from backend_caps.errors import BackendCapsError, CodedError


class StartupError(CodedError):
    """A server cannot start as it is configured, or ranks cannot come together."""

    codes: ClassVar[Mapping[str, str]] = {
        "control-group": "a process group has no gloo for the CPU, or this rank is no member",
        "deadline": "the deadline of an agreement is no number of seconds that can be waited",
        "device": "torch cannot use a device on this machine",
        "graph-size": "a graph is asked for a batch that its kind does not have",
        "job": "the ranks of a job do not come together, or one of them is lost",
        "lock-differs": "what is installed, or the plan, is not what a lock file says",
        "per-rank": "`per_rank` names no flag, fact or argument",
    }


RankNumbers = tuple[int, ...]
"""Ranks of a group, ascending."""
_SHOWN = 8
"""Ranks that are listed by number."""


def listed(ranks: RankNumbers, hosts: Mapping[int, str] | None = None) -> str:
    """Name ranks, with their hosts where these are known: `ranks 0 (node-a), 1 and 2`."""
    known = hosts or {}
    shown = [f"{rank} ({known[rank]})" if rank in known else f"{rank}" for rank in ranks[:_SHOWN]]
    if len(ranks) > _SHOWN:
        shown.append(f"{len(ranks) - _SHOWN} more")
    *first, last = shown
    numbers = f"{', '.join(first)} and {last}" if first else last
    return f"rank{'s' if len(ranks) > 1 else ''} {numbers}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One field that must be the same on every rank, and is not."""

    field: str
    values: tuple[tuple[str, RankNumbers], ...]
    """Each value, with the ranks that have it; that of the lowest rank first."""

    @classmethod
    def among(cls, field: str, held: Iterable[tuple[str, RankNumbers]]) -> Difference | None:
        """Return a field's values with the ranks that hold them; None where they are one."""
        ranks: dict[str, list[int]] = {}
        for value, own in held:
            ranks.setdefault(value, []).extend(own)
        if len(ranks) == 1:
            return None
        values = ((value, tuple(sorted(own))) for value, own in ranks.items())
        return cls(field=field, values=tuple(sorted(values, key=lambda each: each[1])))

    def told(self, hosts: Mapping[int, str]) -> str:
        """Write which ranks have which value."""
        said = "; ".join(f"{value} on {listed(ranks, hosts)}" for value, ranks in self.values)
        return f"{self.field} is {said}"


@dataclass(eq=False, kw_only=True)
class RanksDifferError(BackendCapsError):
    """Ranks of one job differ in what must be the same on all of them. Raised on every rank."""

    differences: Sequence[Difference]
    hosts: Mapping[int, str]
    """The host of a rank, for those that are named."""

    @property
    def message(self) -> str:
        """Each field, with its values and their ranks."""
        told = ". ".join(each.told(self.hosts) for each in self.differences)
        return (
            f"the ranks of this job differ: {told}. Expected one value on all ranks. Start every "
            "rank with the same flags, rules, lock file and distributions; name a flag that is to "
            "differ in per_rank."
        )


@dataclass(eq=False, kw_only=True)
class RankFailedError(BackendCapsError):
    """Another rank could not decide; none goes on. Raised on the others, which were well."""

    failures: Sequence[tuple[str, RankNumbers]]
    """What was raised, with the ranks that raised it."""
    hosts: Mapping[int, str]
    differences: Sequence[Difference] = ()
    """What else is not the same on all ranks: it may be why some have no plan."""

    @property
    def message(self) -> str:
        """Who failed, and how."""
        told = "; ".join(
            f"{listed(ranks, self.hosts)}: {what.rstrip('.')}" for what, ranks in self.failures
        )
        differing = "".join(
            f" The ranks differ: {each.told(self.hosts)}." for each in self.differences
        )
        return (
            f"no plan was agreed on, because not every rank has one. Raised on {told}.{differing} "
            "Correct it there, and start all ranks again."
        )


@dataclass(eq=False, kw_only=True)
class MissingRanksError(BackendCapsError):
    """Ranks did not answer before the deadline, or were lost on the way. None goes on."""

    round: str
    """What was waited for."""
    seconds: float
    """How long this rank has waited."""
    deadline_s: float
    absent: RankNumbers
    """Those that never came to agree."""
    silent: RankNumbers
    """Those that came, and were not heard of again."""
    gave_up: RankNumbers
    """Those whose round had failed before this rank's did."""
    hosts: Mapping[int, str]
    cause: str
    """What the transport said."""
    unknown: str = ""
    """Why nobody can be named, where that is so."""

    @property
    def message(self) -> str:
        """Who is missing, what was waited for, and what to do."""
        said = []
        if self.absent:
            said.append(f"{listed(self.absent)} did not come")
        if self.silent:
            said.append(f"{listed(self.silent, self.hosts)} came, and is not heard of any more")
        if not said and self.gave_up:
            said.append(f"{listed(self.gave_up)} gave up before")
        late = "every rank has come by now, and one of them was too late or gave up"
        who = "; ".join(said) or self.unknown or late
        return (
            f"no agreement after {self.seconds:.1f} s, in {self.round}: {who}. Expected an answer "
            f"of every rank within {self.deadline_s:g} s. Look at the logs of these ranks, and "
            f"start all again; where they are only slow, give more with deadline_s. "
            f"({self.cause})"
        )
