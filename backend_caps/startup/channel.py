"""Rounds over a process group of torch, on the CPU, with a deadline, and who is missing from them.

Beside the rounds, ranks leave in their group's store that they came, and that they left. Nobody
waits for these words. The first rank whose round fails reads them, finds out who is missing, and
leaves that for the others, which look for it now and then while they wait: gloo itself tells a lost
rank to its neighbours alone. The store ends with the process that keeps it, and a launcher may end
all ranks when one ends: so a rank whose round failed raises once all others have read the words
too. A store may stop answering, so whatever waits for its answer does so in a thread of its own.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from threading import Event, Thread
from typing import Protocol
from weakref import WeakKeyDictionary

import torch
from pydantic import BaseModel
from torch import Tensor
from torch import distributed as dist
from torch.distributed.distributed_c10d import PrefixStore

from backend_caps.discovery.loading import LONGEST_DEADLINE_S
from backend_caps.settings.settings import AGREEMENT_DEADLINE_S
from backend_caps.startup.errors import MissingRanksError, StartupError

LOOKING_S = 0.5
"""How often a rank that waits looks whether another has given up."""
FINDING_S = 3.0
"""How long a rank takes at most to find out, or to hear, who is missing."""
_LEAVING_S = 2.0
"""How long the first rank whose round failed waits for the others to leave."""
_HEARING_S = 2.0
"""How long a rank that knows who is missing waits at most until all others know it."""
_AGAIN_S = 0.1
_NUM_AGREEMENTS: WeakKeyDictionary[dist.ProcessGroup, int] = WeakKeyDictionary()
"""How often this process has agreed in a group: as often as all its other ranks."""
_ENDING_S = 1.0
"""What is left at least once all ranks have come: who comes at the last moment splits no group."""
_LEAST_S = 0.001
"""What gloo takes for a time-out."""
RoundOptions = dist.AllreduceOptions | dist.BarrierOptions | dist.BroadcastOptions
"""What torch takes for a round."""


class Channel(Protocol):
    """What carries rounds between ranks. Each rank takes part in each, in one order.

    A round that does not end in time raises on every rank that is still there.
    """

    @property
    def ranks(self) -> Sequence[int]:
        """The number that each of these ranks has in the job."""

    def largest(self, values: Sequence[int], round_name: str) -> list[int]:
        """Return the largest of all ranks' int64 values, place by place."""

    def met(self, round_name: str) -> None:
        """Wait until every rank has come to this round; nothing is said in it."""

    def gathered(self, values: Sequence[int], round_name: str) -> list[list[int]]:
        """Return every rank's int64 values, by rank."""

    def said_by(self, rank: int, own: bytes, num_bytes: int, round_name: str) -> bytes:
        """Return the bytes of one rank; those of the others are not looked at."""


class GroupChannel:
    """Carries rounds over a process group's gloo; never over what a device talks with.

    After an error the group's state is unknown, and it is not to be used again.

    Args:
        group: of the ranks that are to agree, with gloo for the CPU.
        host: this rank's machine, as others are told of it.
        deadline_s: seconds from now until the last round ends.

    Raises:
        StartupError: the group has no gloo, this rank is no member, or the deadline is none.

    Stream: none. Sync: each round waits for every rank. Not for use under capture.
    """

    def __init__(
        self, group: dist.ProcessGroup, *, host: str, deadline_s: float = AGREEMENT_DEADLINE_S
    ) -> None:
        _require_gloo(group)
        if not 0 < deadline_s <= LONGEST_DEADLINE_S:
            raise StartupError(
                "deadline",
                f"an agreement's deadline cannot be {deadline_s!r} s; expected more than 0, and at "
                f"most {LONGEST_DEADLINE_S:g}. Give the seconds that the slowest rank may take to "
                "come.",
            )
        self._group = group
        self._deadline_s = deadline_s
        self._started = time.monotonic()
        self._until = self._started + deadline_s
        self._latest = self._until + _ENDING_S
        self._presence = Presence(group, host)

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
        found[self._group.rank()] = torch.tensor(values, dtype=torch.int64)
        return self._reduced(found, round_name).tolist()

    def said_by(self, rank: int, own: bytes, num_bytes: int, round_name: str) -> bytes:
        """Return the bytes of one rank."""
        said = torch.empty(num_bytes, dtype=torch.uint8)
        if rank == self._group.rank():
            said = torch.frombuffer(bytearray(own), dtype=torch.uint8)
        options = dist.BroadcastOptions()
        options.rootRank = rank
        self._wait(options, round_name, lambda: self._group.broadcast([said], options))
        return said.numpy().tobytes()

    def close(self) -> None:
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
            self._finish(start())
        except RuntimeError as error:  # of gloo, which has no class for it
            raise self._missing(round_name, error) from error
        self._until = min(max(self._until, time.monotonic() + _ENDING_S), self._latest)

    def _finish(self, work: dist.Work) -> None:
        """Wait for a round to end, unless another rank gives up or the time is over."""
        while not is_over(work):
            if self._presence.somebody_gave_up():
                raise RuntimeError("another rank gave up")
            if time.monotonic() > self._until + LOOKING_S:
                raise RuntimeError("the time is over")

    def _missing(self, round_name: str, error: Exception) -> MissingRanksError:
        seconds = time.monotonic() - self._started
        found = self._presence.of_a_failure()
        job, own = self.ranks, self._group.rank()
        return MissingRanksError(
            round=round_name,
            seconds=seconds,
            deadline_s=self._deadline_s,
            absent=tuple(job[rank] for rank in found.absent if rank != own),
            silent=tuple(job[rank] for rank in found.silent),
            gave_up=tuple(job[rank] for rank in found.gave_up if rank != own),
            hosts={job[rank]: host for rank, host in found.hosts.items()},
            cause=first_sentence(error),
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


def first_sentence(error: Exception) -> str:
    """Take gloo's first sentence, without the place in its source."""
    (line, *_) = str(error).splitlines() or [type(error).__name__]
    return re.sub(r"^\[[^\]]*\] ", "", line).partition(". ")[0]


def _require_gloo(group: dist.ProcessGroup) -> None:
    """Require a group that talks on the CPU, and a member of it."""
    if isinstance(group, dist.ProcessGroup):
        backends = dist.get_backend_config(group)
        problem = None if "cpu:gloo" in backends.split(",") else f"it talks over {backends}"
    else:
        problem = f"it is a {type(group).__name__}, so this rank is no member"
    if problem is not None:
        raise StartupError(
            "control-group",
            f"the process group cannot carry the agreement: {problem}. Expected one with gloo for "
            "the CPU, of which this rank is a member, such as "
            'torch.distributed.new_group(backend="gloo").',
        )


class FoundMissing(BaseModel):
    """Who is missing, as far as the store tells; by numbers in the group."""

    absent: list[int] = []
    silent: list[int] = []
    gave_up: list[int] = []
    """The rank that found it: it was the first."""
    hosts: dict[int, str] = {}
    unknown: str = ""
    """Why nobody can be named, where that is so."""


class Presence:
    """One rank's words in its group's store, for one agreement: from now on the rank is there.

    Args:
        group: whose store it is.
        host: this rank's machine.
    """

    def __init__(self, group: dist.ProcessGroup, host: str) -> None:
        self._rank, self._size = group.rank(), group.size()
        number = _NUM_AGREEMENTS.get(group, 0)
        _NUM_AGREEMENTS[group] = number + 1
        prefix = f"backend_caps/agreement/{number}"
        self._store = PrefixStore(prefix, group.get_group_store())
        self._looking: Thread | None = None
        self._gave_up, self._over = Event(), Event()
        self._say("came", host)

    def leave(self) -> None:
        """Say that this rank ends, one way or the other; nothing is waited for."""
        self._over.set()
        if self._looking is None:  # else the thread that looks says it
            self._say("left", "")

    def somebody_gave_up(self) -> bool:
        """Tell whether a round failed on some rank, as far as the store has answered.

        It is asked from the first call on, beside the caller; a store that is gone counts too.
        """
        if self._looking is None:
            self._looking = Thread(target=self._look, daemon=True)
            self._looking.start()
        return self._gave_up.is_set()

    def of_a_failure(self) -> FoundMissing:
        """Find out who is missing, or hear it from the rank that does; return once all know it.

        It ends though the store may not answer.
        """
        self._over.set()
        found: list[FoundMissing] = []
        asking = Thread(target=self._find, args=(found,), daemon=True)
        asking.start()
        asking.join(FINDING_S)
        if found:
            asking.join(_HEARING_S)
        return found[0] if found else FoundMissing(unknown=_no_store())

    def _look(self) -> None:
        """Look now and then, until this rank ends or another gave up."""
        try:
            while not self._over.is_set() and not self._store.check(["asking"]):
                self._over.wait(LOOKING_S)
        except RuntimeError:  # of any kind: the store's process is gone
            self._gave_up.set()
        if self._over.is_set():
            self._say("left", "")
        else:
            self._gave_up.set()

    def _find(self, found: list[FoundMissing]) -> None:
        with suppress(RuntimeError):  # of any kind: the store's process is gone
            self._say("left", "")
            if self._store.add("asking", 1) == 1:
                known = self._missing()
                self._store.set("found", known.model_dump_json())
            else:
                self._store.wait(["found"], timedelta(seconds=FINDING_S))
                known = FoundMissing.model_validate_json(self._store.get("found"))
            found.append(known)
            self._wait_until_heard(known)

    def _missing(self) -> FoundMissing:
        """Find out who did not come, and wait a little for the others to leave."""
        came = self._those("came", range(self._size))
        silent = came
        until = time.monotonic() + _LEAVING_S
        while silent and time.monotonic() < until:
            time.sleep(_AGAIN_S)
            silent = [rank for rank in silent if rank not in self._those("left", silent)]
        return FoundMissing(
            absent=[rank for rank in range(self._size) if rank not in came],
            silent=silent,
            gave_up=[self._rank],
            hosts={rank: self._store.get(f"came/{rank}").decode() for rank in silent},
        )

    def _wait_until_heard(self, known: FoundMissing) -> None:
        """Wait until every rank that is not missing has read who is; not for ever."""
        self._say("heard", "")
        missing = {*known.absent, *known.silent}
        expected = [f"heard/{rank}" for rank in range(self._size) if rank not in missing]
        self._store.wait(expected, timedelta(seconds=_HEARING_S))

    def _those(self, what: str, ranks: Sequence[int]) -> list[int]:
        """List those of some ranks that left a word."""
        if ranks and self._store.check([f"{what}/{rank}" for rank in ranks]):
            return [*ranks]
        return [rank for rank in ranks if self._store.check([f"{what}/{rank}"])]

    def _say(self, what: str, word: str) -> None:
        """Leave a word; a store that is gone takes none, and the rounds tell that."""
        with suppress(RuntimeError):
            self._store.set(f"{what}/{self._rank}", word)


def _no_store() -> str:
    """Say what it means that the store does not answer."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        return "the launcher's store does not answer, so who is missing is not known"
    return "the store does not answer, which rank 0 of the job keeps: that rank is gone, or hangs"
