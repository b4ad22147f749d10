"""Rounds over a process group of torch, on the CPU, with a deadline."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from datetime import timedelta

import torch
from torch import Tensor
from torch import distributed as dist

from backend_caps.discovery.loading import LONGEST_DEADLINE_S
from backend_caps.settings.settings import AGREEMENT_DEADLINE_S
from backend_caps.startup.agreement.errors import (
    AgreementDeadlineError,
    ControlGroupError,
    MissingRanksError,
)
from backend_caps.startup.agreement.presence import LOOKING_S, Presence

_ENDING_S = 1.0
"""What is left at least once all ranks have come: who comes at the last moment splits no group."""
_LEAST_S = 0.001
"""What gloo takes for a time-out."""
RoundOptions = dist.AllreduceOptions | dist.BarrierOptions | dist.BroadcastOptions
"""What torch takes for a round."""


class GroupChannel:
    """Carries rounds over a process group's gloo; never over what a device talks with.

    After an error the group's state is unknown, and it is not to be used again.

    Args:
        group: of the ranks that are to agree, with gloo for the CPU.
        host: this rank's machine, as others are told of it.
        deadline_s: seconds from now until the last round ends.

    Raises:
        ControlGroupError: the group has no gloo, or this rank is no member.
        AgreementDeadlineError: the deadline is none.

    Stream: none. Sync: each round waits for every rank. Not for use under capture.
    """

    def __init__(
        self, group: dist.ProcessGroup, *, host: str, deadline_s: float = AGREEMENT_DEADLINE_S
    ) -> None:
        _require_gloo(group)
        if not 0 < deadline_s <= LONGEST_DEADLINE_S:
            raise AgreementDeadlineError(deadline_s=deadline_s)
        self._group = group
        self._deadline_s = deadline_s
        self._started = time.monotonic()
        self._until = self._started + deadline_s
        self._latest = self._until + _ENDING_S
        self._presence = Presence(group)
        self._presence.come(host)

    @property
    def rank(self) -> int:
        """This rank's number in the group."""
        return self._group.rank()

    @property
    def ranks(self) -> Sequence[int]:
        """The numbers in the job of the group's ranks."""
        return dist.get_process_group_ranks(self._group)

    def largest(self, values: Sequence[int], round_name: str) -> list[int]:
        """Return the largest of all ranks' values, place by place."""
        return self._reduced(torch.tensor(values, dtype=torch.int64), round_name).tolist()

    def met(self, round_name: str) -> None:
        """Wait until every rank has come to this round."""
        options = dist.BarrierOptions()
        self._wait(options, round_name, lambda: self._group.barrier(options))

    def gathered(self, values: Sequence[int], round_name: str) -> list[list[int]]:
        """Return every rank's values, by rank."""
        found = torch.full((self._group.size(), len(values)), torch.iinfo(torch.int64).min)
        found[self.rank] = torch.tensor(values, dtype=torch.int64)
        return self._reduced(found, round_name).tolist()

    def said_by(self, rank: int, own: bytes, num_bytes: int, round_name: str) -> bytes:
        """Return the bytes of one rank."""
        said = _tensor_of(own) if rank == self.rank else torch.empty(num_bytes, dtype=torch.uint8)
        options = dist.BroadcastOptions()
        options.rootRank = rank
        self._wait(options, round_name, lambda: self._group.broadcast([said], options))
        return said.numpy().tobytes()

    def ended(self) -> None:
        """Say that this rank takes part in no more rounds."""
        self._presence.leave()

    def _reduced(self, values: Tensor, round_name: str) -> Tensor:
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp(dist.ReduceOp.MAX)
        self._wait(options, round_name, lambda: self._group.allreduce([values], options))
        return values

    def _wait(self, options: RoundOptions, round_name: str, start: Callable[[], dist.Work]) -> None:
        """Run a round to its end, within what is left of the time, unless another rank gave up."""
        left = max(self._until - time.monotonic(), _LEAST_S)
        options.timeout = timedelta(seconds=left)
        try:
            work = start()
            while not is_over(work):
                if self._presence.somebody_gave_up():
                    raise _GivenUpError
                if time.monotonic() > self._until + LOOKING_S:
                    raise _LateError
        except RuntimeError as error:  # of gloo, which has no class for it
            raise self._missing(round_name, error) from error
        self._until = min(max(self._until, time.monotonic() + _ENDING_S), self._latest)

    def _missing(self, round_name: str, error: Exception) -> MissingRanksError:
        seconds = time.monotonic() - self._started
        found = self._presence.of_a_failure()
        job = self.ranks
        return MissingRanksError(
            round=round_name,
            seconds=seconds,
            deadline_s=self._deadline_s,
            absent=tuple(job[rank] for rank in found.absent if rank != self.rank),
            silent=tuple(job[rank] for rank in found.silent),
            gave_up=tuple(job[rank] for rank in found.gave_up if rank != self.rank),
            hosts={job[rank]: host for rank, host in found.hosts.items()},
            cause=_short(error),
            unknown=found.unknown,
        )


def is_over(work: dist.Work) -> bool:
    """Wait for a round, for a little while.

    Raises:
        RuntimeError: it has failed.
    """
    try:
        return work.wait(timedelta(seconds=LOOKING_S))
    except RuntimeError:  # of the round, or of this wait alone
        return work.is_completed() and work.wait()


class _GivenUpError(RuntimeError):
    """Another rank has given up."""

    def __str__(self) -> str:
        return "another rank gave up"


class _LateError(RuntimeError):
    """The time is over, though gloo has not said so."""

    def __str__(self) -> str:
        return "the time is over"


def _short(error: Exception) -> str:
    """Take gloo's first sentence, without the place in its source."""
    (line, *_) = str(error).splitlines() or [type(error).__name__]
    return re.sub(r"^\[[^\]]*\] ", "", line).partition(". ")[0]


def _require_gloo(group: dist.ProcessGroup) -> None:
    """Require a group that talks on the CPU, and a member of it."""
    if not isinstance(group, dist.ProcessGroup):
        kind = type(group).__name__
        raise ControlGroupError(problem=f"it is a {kind}, so this rank is no member")
    backends = dist.get_backend_config(group)
    if "cpu:gloo" not in backends.split(","):
        raise ControlGroupError(problem=f"it talks over {backends}")


def _tensor_of(said: bytes) -> Tensor:
    return torch.frombuffer(bytearray(said), dtype=torch.uint8)
