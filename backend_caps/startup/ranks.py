"""The ranks that a launcher such as torchrun has started, and their process groups."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
from torch import distributed as dist

from backend_caps.startup.channel import first_sentence
from backend_caps.startup.errors import StartupError

_RUN_TIMEOUT_S = 1800.0
"""How long a rank that has finished its run waits for the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlace:
    """One rank's position in its job."""

    rank: int
    """Its number in the job."""
    size: int
    """Ranks of the job."""
    local_rank: int = 0
    """Its number among the ranks of its machine."""

    @classmethod
    def in_environment(cls, environ: Mapping[str, str]) -> RankPlace | None:
        """Return this process's rank from the environment; None where no launcher set it.

        Raises:
            StartupError: RANK and WORLD_SIZE are no rank and size.
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
    """The ranks of a job, with a process group for agreement and one for results."""

    place: RankPlace
    """This rank."""
    agreeing: dist.ProcessGroup
    """All ranks, for agreement: its rounds time out after the deadline."""
    gathering: dist.ProcessGroup
    """All ranks, for results: its rounds may take as long as a run."""

    def take_device(self, device: str) -> None:
        """Make this rank's GPU the current one, where `cuda` is named without its number."""
        if device == "cuda" and torch.cuda.is_available():
            torch.cuda.set_device(self.place.local_rank % torch.cuda.device_count())

    def gathered(self, result: str) -> list[str]:
        """Return every rank's result, by rank; all ranks have to call it.

        Raises:
            StartupError: a rank is lost.

        Stream: none. Sync: waits for every rank, on the host.
        """
        results: list[object] = [None] * self.place.size
        try:
            dist.all_gather_object(results, result, group=self.gathering)
        except RuntimeError as error:  # gloo raises no more specific class
            raise _lost(self.place, "the others' results", error) from error
        return [*map(str, results)]


@contextmanager
def joined(place: RankPlace, *, deadline_s: float) -> Iterator[RankGroup]:
    """Join the other ranks in gloo process groups for as long as a `with` block runs.

    After a failure the process has to end: torch names groups by a counter that a failure leaves
    advanced, so a second try would wait in the store under another name than the other ranks.

    Raises:
        StartupError: not all ranks came in time.
    """
    try:
        dist.init_process_group("gloo", timeout=timedelta(seconds=deadline_s))
        gathering = dist.new_group(backend="gloo", timeout=timedelta(seconds=_RUN_TIMEOUT_S))
    except (RuntimeError, ValueError) as error:  # of the store, and of its address
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
