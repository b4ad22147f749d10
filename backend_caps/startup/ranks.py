"""The ranks that a launcher such as torchrun has started: who they are, and a group of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
from torch import distributed as dist

from backend_caps.startup.channel import first_sentence
from backend_caps.startup.errors import StartupError

_RUNNING_S = 1800.0
"""How long a rank that is done waits for one that still runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlace:
    """One rank of a job."""

    rank: int
    size: int
    local_rank: int = 0
    """Its number among the ranks of its machine."""

    @classmethod
    def in_environment(cls, environ: Mapping[str, str]) -> RankPlace | None:
        """Read which rank this process is; None where no launcher started it.

        Raises:
            StartupError: the environment names none that there can be.
        """
        rank, size = environ.get("RANK"), environ.get("WORLD_SIZE")
        if rank is None or size is None:
            return None
        if not (rank.isdecimal() and size.isdecimal() and int(rank) < int(size)):
            raise _missing(rank, size, "a place in its job", "these are no such numbers")
        local = environ.get("LOCAL_RANK", "")
        local_rank = int(local) if local.isdecimal() else 0
        return cls(rank=int(rank), size=int(size), local_rank=local_rank)


@dataclass(frozen=True, slots=True)
class RankGroup:
    """The ranks of a job, with a group to agree in and one to gather in."""

    place: RankPlace
    """This rank's."""
    agreeing: dist.ProcessGroup
    """The group of all ranks that agreements go over."""
    gathering: dist.ProcessGroup
    """Another, whose rounds may take as long as a run."""

    def take_device(self, device: str) -> None:
        """Make this rank's GPU the current one, where `cuda` is named without its number."""
        if device == "cuda" and torch.cuda.is_available():
            torch.cuda.set_device(self.place.local_rank % torch.cuda.device_count())

    def gathered(self, said: str) -> list[str]:
        """Return what every rank says, by rank; all call it.

        Raises:
            StartupError: one is lost.

        Stream: none. Sync: waits for every rank, on the host.
        """
        found: list[object] = [None] * self.place.size
        try:
            dist.all_gather_object(found, said, group=self.gathering)
        except RuntimeError as error:  # of gloo, which has no class for it
            raise _lost(self.place, "the others' results", error) from error
        return [str(own) for own in found]


@contextmanager
def joined(place: RankPlace, *, deadline_s: float) -> Iterator[RankGroup]:
    """Come together with the other ranks for as long as a `with` block runs, over gloo.

    A process whose job failed ends: torch names groups by a count that goes on after a failure,
    and a second try would wait for ranks that look elsewhere.

    Raises:
        StartupError: not all of them came in time.
    """
    try:
        dist.init_process_group("gloo", timeout=timedelta(seconds=deadline_s))
        gathering = dist.new_group(backend="gloo", timeout=timedelta(seconds=_RUNNING_S))
    except (RuntimeError, ValueError) as error:  # of the store, and of what it is told
        raise _lost(place, f"a group of all ranks within {deadline_s:g} s", error) from error
    try:
        agreeing = dist.group.WORLD
        assert agreeing is not None, "a group was made"
        assert isinstance(gathering, dist.ProcessGroup), "of all ranks, so of this one"
        yield RankGroup(place, agreeing, gathering)
    finally:
        dist.destroy_process_group()


def _lost(place: RankPlace, what: str, error: Exception) -> StartupError:
    cause = first_sentence(error).rstrip(".")
    return _missing(f"{place.rank}", f"{place.size}", what, cause)


def _missing(rank: str, size: str, what: str, cause: str) -> StartupError:
    return StartupError(
        "job",
        f"rank {rank} of {size} did not get {what}: {cause}. Expected every rank that RANK and "
        "WORLD_SIZE name. Look at the logs of the other ranks, and start all of them again with "
        "torchrun.",
    )
