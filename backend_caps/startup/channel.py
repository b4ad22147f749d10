"""Collective rounds over gloo with a deadline, and which ranks are missing when a round fails.

Beside the rounds, each rank sets the keys `came` and `left` in its group's store; no rank blocks on
them while rounds succeed. The first rank whose round fails reads the keys, works out which ranks
are missing, and stores the result. The others poll for it while they wait, because gloo reports a
lost rank to its neighbours alone. The store ends with the process that hosts it, and a launcher may
end all ranks when one ends: so a rank whose round failed raises only once all others have read the
result. A store may stop answering, so each blocking store call runs in a daemon thread.
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

POLL_S = 0.5
"""Interval at which a waiting rank checks whether another rank's round failed."""
FIND_S = 3.0
"""Longest time in which a rank computes or reads which ranks are missing."""
_LEAVE_S = 2.0
"""How long the first rank whose round failed waits for the others to leave."""
_READ_S = 2.0
"""Longest wait until all other ranks have read which ranks are missing."""
_RETRY_S = 0.1
_NUM_AGREEMENTS: WeakKeyDictionary[dist.ProcessGroup, int] = WeakKeyDictionary()
"""Agreements by group in this process; every rank of a group has the same number."""
_GRACE_S = 1.0
"""Shortest time for the rounds after the first, so that a rank that arrives at the deadline does
not split the group into ranks that succeed and ranks that time out."""
_MIN_TIMEOUT_S = 0.001
"""Smallest timeout that gloo accepts."""
RoundOptions = dist.AllreduceOptions | dist.BarrierOptions | dist.BroadcastOptions
"""Options of torch's collectives that a round uses."""


class Channel(Protocol):
    """Collective rounds between ranks; every rank calls the same rounds in the same order.

    A round that does not end in time raises on every rank that is still running.
    """

    @property
    def ranks(self) -> Sequence[int]:
        """The job-wide number of each rank of the channel."""

    def largest(self, values: Sequence[int], round_name: str) -> list[int]:
        """Return the elementwise maximum of all ranks' int64 values."""

    def barrier(self, round_name: str) -> None:
        """Wait until every rank has called this round."""

    def gathered(self, values: Sequence[int], round_name: str) -> list[list[int]]:
        """Return every rank's int64 values, by rank."""

    def broadcast(self, rank: int, payload: bytes, num_bytes: int, round_name: str) -> bytes:
        """Return the payload of `rank`, of `num_bytes`; other ranks' payloads are ignored."""


class GroupChannel:
    """Run rounds over a process group's gloo backend, never over a device backend such as nccl.

    After an error the group's state is unknown, so it must not be used again.

    Args:
        group: of the ranks that are to agree, with gloo for the CPU.
        host: this rank's host name, which errors on other ranks show.
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
        # Grace is given once: without this bound each further round would extend the deadline.
        self._latest = self._until + _GRACE_S
        self._presence = Presence(group, host)

    @property
    def ranks(self) -> Sequence[int]:
        """The job-wide numbers of the group's ranks."""
        return dist.get_process_group_ranks(self._group)

    def largest(self, values: Sequence[int], round_name: str) -> list[int]:
        """Return the elementwise maximum of all ranks' values."""
        return self._reduced(torch.tensor(values, dtype=torch.int64), round_name).tolist()

    def barrier(self, round_name: str) -> None:
        """Wait until every rank has called this round."""
        options = dist.BarrierOptions()
        self._wait(options, round_name, lambda: self._group.barrier(options))

    def gathered(self, values: Sequence[int], round_name: str) -> list[list[int]]:
        """Return every rank's values, by rank."""
        # An all-reduce by MAX also gathers: each rank fills its row, the others hold the minimum.
        rows = torch.full((self._group.size(), len(values)), torch.iinfo(torch.int64).min)
        rows[self._group.rank()] = torch.tensor(values, dtype=torch.int64)
        return self._reduced(rows, round_name).tolist()

    def broadcast(self, rank: int, payload: bytes, num_bytes: int, round_name: str) -> bytes:
        """Return the payload of `rank`."""
        buffer = torch.empty(num_bytes, dtype=torch.uint8)
        if rank == self._group.rank():
            buffer = torch.frombuffer(bytearray(payload), dtype=torch.uint8)
        options = dist.BroadcastOptions()
        options.rootRank = rank
        self._wait(options, round_name, lambda: self._group.broadcast([buffer], options))
        return buffer.numpy().tobytes()

    def close(self) -> None:
        """Mark in the store that this rank takes part in no more rounds."""
        self._presence.leave()

    def _reduced(self, values: Tensor, round_name: str) -> Tensor:
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp(dist.ReduceOp.MAX)
        self._wait(options, round_name, lambda: self._group.allreduce([values], options))
        return values

    def _wait(self, options: RoundOptions, round_name: str, start: Callable[[], dist.Work]) -> None:
        """Run a round within the remaining time; fail early where another rank's round failed."""
        remaining_s = max(self._until - time.monotonic(), _MIN_TIMEOUT_S)
        options.timeout = timedelta(seconds=remaining_s)
        try:
            self._finish(start())
        except RuntimeError as error:  # gloo raises no more specific class
            raise self._missing(round_name, error) from error
        self._until = min(max(self._until, time.monotonic() + _GRACE_S), self._latest)

    def _finish(self, work: dist.Work) -> None:
        """Wait for a round to end, until another rank's round fails or the deadline passes."""
        while not is_over(work):
            if self._presence.another_gave_up():
                raise RuntimeError("another rank gave up")
            # gloo's own timeout comes first; this one ends a wait that gloo does not time out.
            if time.monotonic() > self._until + POLL_S:
                raise RuntimeError("the time is over")

    def _missing(self, round_name: str, error: Exception) -> MissingRanksError:
        seconds = time.monotonic() - self._started
        missing = self._presence.find_missing()
        job_ranks, this_rank = self.ranks, self._group.rank()
        return MissingRanksError(
            round=round_name,
            seconds=seconds,
            deadline_s=self._deadline_s,
            absent=tuple(job_ranks[rank] for rank in missing.absent if rank != this_rank),
            silent=tuple(job_ranks[rank] for rank in missing.silent),
            gave_up=tuple(job_ranks[rank] for rank in missing.gave_up if rank != this_rank),
            hosts={job_ranks[rank]: host for rank, host in missing.hosts.items()},
            cause=first_sentence(error),
            unknown=missing.unknown,
        )


def is_over(work: dist.Work) -> bool:
    """Wait up to `POLL_S` for a round, and return whether it has ended.

    Raises:
        RuntimeError: the round has failed.
    """
    try:
        return work.wait(timedelta(seconds=POLL_S))
    except RuntimeError:
        # gloo raises the same class when only this wait timed out; a second wait on completed
        # work returns at once, or raises the round's own error.
        return work.is_completed() and work.wait()


def first_sentence(error: Exception) -> str:
    """Return the first sentence of gloo's message, without its `[file:line]` prefix."""
    (line, *_) = str(error).splitlines() or [type(error).__name__]
    return re.sub(r"^\[[^\]]*\] ", "", line).partition(". ")[0]


def _require_gloo(group: dist.ProcessGroup) -> None:
    """Require a group with gloo for the CPU, of which this rank is a member."""
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


class MissingRanks(BaseModel):
    """Ranks that are missing according to the store, by their number in the group."""

    absent: list[int] = []
    """Ranks that did not set `came`."""
    silent: list[int] = []
    """Ranks that set `came`, and did not set `left` in time."""
    gave_up: list[int] = []
    """The first rank whose round failed; it filled in this model."""
    hosts: dict[int, str] = {}
    """The host names of the silent ranks."""
    unknown: str = ""
    """Why the missing ranks cannot be listed, where they cannot."""


class Presence:
    """One rank's keys in its group's store, for one agreement; sets `came` when it is made.

    Args:
        group: the group whose store is used.
        host: this rank's host name.
    """

    def __init__(self, group: dist.ProcessGroup, host: str) -> None:
        self._rank, self._size = group.rank(), group.size()
        # A number per agreement keeps the keys of an earlier one in the same group from counting.
        number = _NUM_AGREEMENTS.get(group, 0)
        _NUM_AGREEMENTS[group] = number + 1
        prefix = f"backend_caps/agreement/{number}"
        self._store = PrefixStore(prefix, group.get_group_store())
        self._watcher: Thread | None = None
        self._gave_up, self._over = Event(), Event()
        self._set("came", host)

    def leave(self) -> None:
        """Set `left`, after success or failure; return without waiting for the store."""
        self._over.set()
        if self._watcher is None:  # else the watcher thread sets it when it ends
            self._set("left", "")

    def another_gave_up(self) -> bool:
        """Return whether a round failed on some rank, as far as the store has answered.

        The first call starts a thread that polls the store; a lost store counts as a failure.
        """
        if self._watcher is None:
            self._watcher = Thread(target=self._watch, daemon=True)
            self._watcher.start()
        return self._gave_up.is_set()

    def find_missing(self) -> MissingRanks:
        """Return which ranks are missing, once all remaining ranks have read it.

        The first rank to call it computes the result; the others read it from the store. It
        returns within bounded time, even where the store does not answer.
        """
        self._over.set()
        results: list[MissingRanks] = []
        finder = Thread(target=self._share_missing, args=(results,), daemon=True)
        finder.start()
        finder.join(FIND_S)
        if results:
            finder.join(_READ_S)
        return results[0] if results else MissingRanks(unknown=_no_store())

    def _watch(self) -> None:
        """Poll the store until this rank ends or another rank's round fails."""
        try:
            while not self._over.is_set() and not self._store.check(["asking"]):
                self._over.wait(POLL_S)
        except RuntimeError:  # any store error means that the store's process is gone
            self._gave_up.set()
        if self._over.is_set():
            self._set("left", "")
        else:
            self._gave_up.set()

    def _share_missing(self, results: list[MissingRanks]) -> None:
        with suppress(RuntimeError):  # any store error means that the store's process is gone
            self._set("left", "")
            # `add` is atomic, so exactly one rank gets 1 and computes the result.
            if self._store.add("asking", 1) == 1:
                missing = self._missing()
                self._store.set("found", missing.model_dump_json())
            else:
                self._store.wait(["found"], timedelta(seconds=FIND_S))
                missing = MissingRanks.model_validate_json(self._store.get("found"))
            results.append(missing)
            self._wait_until_read(missing)

    def _missing(self) -> MissingRanks:
        """List the ranks that did not come, and those that do not leave within `_LEAVE_S`."""
        came = self._ranks_with("came", range(self._size))
        silent = came
        until = time.monotonic() + _LEAVE_S
        while silent and time.monotonic() < until:
            time.sleep(_RETRY_S)
            silent = [rank for rank in silent if rank not in self._ranks_with("left", silent)]
        return MissingRanks(
            absent=[rank for rank in range(self._size) if rank not in came],
            silent=silent,
            gave_up=[self._rank],
            hosts={rank: self._store.get(f"came/{rank}").decode() for rank in silent},
        )

    def _wait_until_read(self, missing: MissingRanks) -> None:
        """Wait up to `_READ_S` until every rank that is not missing has read the result."""
        self._set("heard", "")
        lost = {*missing.absent, *missing.silent}
        expected = [f"heard/{rank}" for rank in range(self._size) if rank not in lost]
        self._store.wait(expected, timedelta(seconds=_READ_S))

    def _ranks_with(self, key: str, ranks: Sequence[int]) -> list[int]:
        """Return those of `ranks` that have set a key."""
        # One check of all keys is one round trip; only where a rank lacks the key is each asked.
        if ranks and self._store.check([f"{key}/{rank}" for rank in ranks]):
            return [*ranks]
        return [rank for rank in ranks if self._store.check([f"{key}/{rank}"])]

    def _set(self, key: str, value: str) -> None:
        """Set this rank's key; a lost store is ignored, because the rounds then fail anyway."""
        with suppress(RuntimeError):
            self._store.set(f"{key}/{self._rank}", value)


def _no_store() -> str:
    """Return why the missing ranks cannot be listed where the store does not answer."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        return "the launcher's store does not answer, so who is missing is not known"
    return "the store does not answer, which rank 0 of the job keeps: that rank is gone, or hangs"
