"""Errors of server start-up, with one rank or several."""

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
"""Most ranks that a message lists by number."""


def listed(ranks: RankNumbers, hosts: Mapping[int, str] | None = None) -> str:
    """List ranks in words, with the known hosts: `ranks 0 (node-a), 1 and 2`."""
    known = hosts or {}
    shown = [f"{rank} ({known[rank]})" if rank in known else f"{rank}" for rank in ranks[:_SHOWN]]
    if len(ranks) > _SHOWN:
        shown.append(f"{len(ranks) - _SHOWN} more")
    *first, last = shown
    numbers = f"{', '.join(first)} and {last}" if first else last
    return f"rank{'s' if len(ranks) > 1 else ''} {numbers}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One field whose value is not the same on every rank."""

    field: str
    values: tuple[tuple[str, RankNumbers], ...]
    """Each value, with the ranks that have it; that of the lowest rank first."""

    @classmethod
    def among(cls, field: str, held: Iterable[tuple[str, RankNumbers]]) -> Difference | None:
        """Return a field's values with the ranks that have them; None where all are equal."""
        ranks: dict[str, list[int]] = {}
        for value, numbers in held:
            ranks.setdefault(value, []).extend(numbers)
        if len(ranks) == 1:
            return None
        values = ((value, tuple(sorted(numbers))) for value, numbers in ranks.items())
        return cls(field=field, values=tuple(sorted(values, key=lambda value: value[1])))

    def sentence(self, hosts: Mapping[int, str]) -> str:
        """Return a sentence, without its full stop, on which ranks have which value."""
        values = "; ".join(f"{value} on {listed(ranks, hosts)}" for value, ranks in self.values)
        return f"{self.field} is {values}"


@dataclass(eq=False, kw_only=True)
class RanksDifferError(BackendCapsError):
    """Ranks of one job differ in what must be the same on all of them. Raised on every rank."""

    differences: Sequence[Difference]
    hosts: Mapping[int, str]
    """Host names by rank, as far as known."""

    @property
    def message(self) -> str:
        """Each field, with its values and their ranks."""
        differences = ". ".join(each.sentence(self.hosts) for each in self.differences)
        return (
            f"the ranks of this job differ: {differences}. Expected one value on all ranks. Start "
            "every rank with the same flags, rules, lock file and distributions; name a flag that "
            "is to differ in per_rank."
        )


@dataclass(eq=False, kw_only=True)
class RankFailedError(BackendCapsError):
    """Another rank has no plan, so none starts. Raised on the ranks that have one."""

    failures: Sequence[tuple[str, RankNumbers]]
    """Each error, with the ranks that raised it."""
    hosts: Mapping[int, str]
    """Host names by rank, as far as known."""
    differences: Sequence[Difference] = ()
    """Other fields that differ between ranks: they may be why some have no plan."""

    @property
    def message(self) -> str:
        """The failed ranks, with their errors."""
        failures = "; ".join(
            f"{listed(ranks, self.hosts)}: {error.rstrip('.')}" for error, ranks in self.failures
        )
        differing = "".join(
            f" The ranks differ: {each.sentence(self.hosts)}." for each in self.differences
        )
        return (
            f"no plan was agreed on, because not every rank has one. Raised on {failures}."
            f"{differing} Correct it there, and start all ranks again."
        )


@dataclass(eq=False, kw_only=True)
class MissingRanksError(BackendCapsError):
    """Ranks did not answer before the deadline, or were lost meanwhile. No rank starts."""

    round: str
    """The round that did not end."""
    seconds: float
    """How long this rank has waited."""
    deadline_s: float
    """How long it was to wait at most."""
    absent: RankNumbers
    """Ranks that never started to agree."""
    silent: RankNumbers
    """Ranks that started, and then neither finished nor gave up."""
    gave_up: RankNumbers
    """Ranks whose round had failed before this rank's did."""
    hosts: Mapping[int, str]
    """Host names by rank, as far as known."""
    cause: str
    """The transport's error."""
    unknown: str = ""
    """Why the missing ranks cannot be listed, where they cannot."""

    @property
    def message(self) -> str:
        """The missing ranks, the round, and what to do."""
        missing = []
        if self.absent:
            missing.append(f"{listed(self.absent)} did not come")
        if self.silent:
            missing.append(f"{listed(self.silent, self.hosts)} came, and is not heard of any more")
        if not missing and self.gave_up:
            missing.append(f"{listed(self.gave_up)} gave up before")
        late = "every rank has come by now, and one of them was too late or gave up"
        reason = "; ".join(missing) or self.unknown or late
        return (
            f"no agreement after {self.seconds:.1f} s, in {self.round}: {reason}. Expected an "
            f"answer of every rank within {self.deadline_s:g} s. Look at the logs of these ranks, "
            f"and start all again; where they are only slow, give more with deadline_s. "
            f"({self.cause})"
        )
