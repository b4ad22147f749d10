"""Rounds over a process group of torch, on the CPU, with a deadline.

Beside the rounds each rank leaves word in the group's store: that it came, and that it left. Nobody
waits for these words. The first rank whose round fails reads them, finds out who is missing, and
leaves that for the others, which look for it now and then while they wait: gloo itself tells a lost
rank to its neighbours alone.
"""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from threading import Thread

import torch
from pydantic import BaseModel
from torch import Tensor
from torch import distributed as dist

from backend_caps.settings.settings import AGREEMENT_DEADLINE_S
from backend_caps.startup.agreement.errors import (
    AgreementDeadlineError,
    ControlGroupError,
    MissingRanksError,
)

LONGEST_DEADLINE_S = 86_400.0
_LOOKING_S = 0.5
"""How often a rank that waits looks whether another has given up."""
_LEAVING_S = 2.0
"""How long the first rank whose round failed waits for the others to leave."""
_FINDING_S = 4.0
"""How long a rank takes at most to find out, or to hear, who is missing."""
_AGAIN_S = 0.1
_LEAST_S = 0.001
"""What gloo takes for a time-out."""
_NUM_AGREEMENTS: Counter[str] = Counter()
"""How often this process has agreed, by the group's name: as often as all its other ranks."""
RoundOptions = dist.AllreduceOptions | dist.BroadcastOptions
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
        self._words = _Words(group)
        self._words.come(host)

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
        """Say that this rank has what it came for."""
        self._words.leave()

    def _reduced(self, values: Tensor, round_name: str) -> Tensor:
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp(dist.ReduceOp.MAX)
        self._wait(options, round_name, lambda: self._group.allreduce([values], options))
        return values

    def _wait(self, options: RoundOptions, round_name: str, start: Callable[[], dist.Work]) -> None:
        """Run a round to its end, within what is left of the time, unless another rank gave up."""
        left = self._deadline_s - (time.monotonic() - self._started)
        options.timeout = timedelta(seconds=max(left, _LEAST_S))
        try:
            work = start()
            while not self._is_over(work):
                if self._words.somebody_gave_up():
                    raise _GivenUpError
        except RuntimeError as error:  # of gloo, which has no class for it
            raise self._missing(round_name, error) from error

    def _is_over(self, work: dist.Work) -> bool:
        """Wait for a round, for a little while; a failed one raises."""
        try:
            return work.wait(timedelta(seconds=_LOOKING_S))
        except RuntimeError:
            if work.is_completed():
                raise
            return False

    def _missing(self, round_name: str, error: Exception) -> MissingRanksError:
        seconds = time.monotonic() - self._started
        found = self._words.of_a_failure()
        job = self.ranks
        return MissingRanksError(
            round=round_name,
            seconds=seconds,
            deadline_s=self._deadline_s,
            absent=tuple(job[rank] for rank in found.absent if rank != self.rank),
            silent=tuple(job[rank] for rank in found.silent),
            gave_up=tuple(job[rank] for rank in found.gave_up if rank != self.rank),
            hosts={job[rank]: host for rank, host in found.hosts.items()},
            cause="; ".join([_short(error), *found.problems]),
        )


class _GivenUpError(RuntimeError):
    """Another rank has given up."""

    def __str__(self) -> str:
        return "another rank gave up"


class _Found(BaseModel):
    """Who is missing, as far as the store tells."""

    absent: list[int] = []
    silent: list[int] = []
    gave_up: list[int] = []
    """The rank that found it: it was the first."""
    hosts: dict[int, str] = {}
    problems: list[str] = []


class _Words:
    """What ranks leave in the group's store for the case that a round fails."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._store = group.get_group_store()
        self._rank, self._size = group.rank(), group.size()
        name = group.group_name
        self._prefix = f"backend_caps/agreement/{_NUM_AGREEMENTS[name]}"
        _NUM_AGREEMENTS[name] += 1

    def come(self, host: str) -> None:
        """Say that this rank is there; nothing is waited for."""
        self._store.set(self._of("came", self._rank), host)

    def leave(self) -> None:
        """Say that this rank ends, one way or the other; nothing is waited for."""
        self._store.set(self._of("left", self._rank), "")

    def somebody_gave_up(self) -> bool:
        """Tell whether a round failed on some rank; a store that is gone says so too."""
        return self._store.check([self._key("asking")])

    def of_a_failure(self) -> _Found:
        """Find out who is missing, or hear it from the rank that does.

        It ends though the store may not answer.
        """
        found: list[_Found] = []
        asking = Thread(target=self._find, args=(found,), daemon=True)
        asking.start()
        asking.join(_FINDING_S)
        return found[0] if found else _Found(problems=[_no_store()])

    def _find(self, found: list[_Found]) -> None:
        with suppress(RuntimeError):  # of any kind: the store's process is gone
            self.leave()
            if self._store.add(self._key("asking"), 1) == 1:
                own = self._missing()
                self._store.set(self._key("found"), own.model_dump_json())
                found.append(own)
            else:
                found.append(self._heard())

    def _missing(self) -> _Found:
        """Find out who did not come, and wait a little for the others to leave."""
        came = self._those("came", range(self._size))
        silent = came
        until = time.monotonic() + _LEAVING_S
        while silent and time.monotonic() < until:
            time.sleep(_AGAIN_S)
            silent = [rank for rank in silent if rank not in self._those("left", silent)]
        return _Found(
            absent=[rank for rank in range(self._size) if rank not in came],
            silent=silent,
            gave_up=[self._rank],
            hosts={rank: self._store.get(self._of("came", rank)).decode() for rank in silent},
        )

    def _heard(self) -> _Found:
        """Wait for what the first rank finds."""
        while not self._store.check([self._key("found")]):
            time.sleep(_AGAIN_S)
        return _Found.model_validate_json(self._store.get(self._key("found")))

    def _those(self, what: str, ranks: Sequence[int]) -> list[int]:
        """List those of some ranks that left a word."""
        if ranks and self._store.check([self._of(what, rank) for rank in ranks]):
            return [*ranks]
        return [rank for rank in ranks if self._store.check([self._of(what, rank)])]

    def _of(self, what: str, rank: int) -> str:
        return self._key(f"{what}/{rank}")

    def _key(self, what: str) -> str:
        return f"{self._prefix}/{what}"


def _no_store() -> str:
    """Say what it means that the store does not answer."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        return "the launcher's store does not answer either"
    return "the store does not answer either, which rank 0 of the job keeps: that rank is gone"


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
