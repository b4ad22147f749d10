"""Rounds over a process group of torch, on the CPU, with a deadline.

Beside the rounds each rank leaves word in the group's store: that it came, that it gave up, that it
has ended. Nobody waits for these words, and only a rank whose round fails reads them, to name the
ranks that are missing.
"""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from threading import Thread

import torch
from torch import Tensor
from torch import distributed as dist

from backend_caps.startup.agreement.errors import (
    AgreementDeadlineError,
    ControlGroupError,
    MissingRanksError,
)

DEADLINE_S = 60.0
"""How long ranks wait for one another."""
LONGEST_DEADLINE_S = 86_400.0
_ASKING_S = 3.0
"""How long a rank whose round failed waits for the others to say that theirs did."""
_ANSWERING_S = 1.0
"""How long the store may take for an answer beyond that."""
_AGAIN_S = 0.05
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
        self, group: dist.ProcessGroup, *, host: str, deadline_s: float = DEADLINE_S
    ) -> None:
        _require_gloo(group)
        if not 0 < deadline_s <= LONGEST_DEADLINE_S:
            raise AgreementDeadlineError(deadline_s=deadline_s)
        self._group = group
        self._deadline_s = deadline_s
        self._started = time.monotonic()
        self._words = _Words(group)
        self._words.leave("came", host)

    @property
    def rank(self) -> int:
        """This rank's number in the group."""
        return self._group.rank()

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
        self._words.leave("ended", "")

    def _reduced(self, values: Tensor, round_name: str) -> Tensor:
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp(dist.ReduceOp.MAX)
        self._wait(options, round_name, lambda: self._group.allreduce([values], options))
        return values

    def _wait(self, options: RoundOptions, round_name: str, start: Callable[[], dist.Work]) -> None:
        """Run a round to its end, within what is left of the time."""
        left = self._deadline_s - (time.monotonic() - self._started)
        options.timeout = timedelta(seconds=max(left, _LEAST_S))
        try:
            start().wait()
        except RuntimeError as error:  # of gloo, which has no class for it
            raise self._missing(round_name, error) from error

    def _missing(self, round_name: str, error: Exception) -> MissingRanksError:
        seconds = time.monotonic() - self._started
        unheard = self._words.of_a_failure(round_name)
        said = [_short(error), *unheard.problems]
        return MissingRanksError(
            round=round_name,
            seconds=seconds,
            deadline_s=self._deadline_s,
            absent=tuple(unheard.absent),
            silent=tuple(unheard.silent),
            gave_up=tuple(unheard.gave_up),
            hosts=unheard.hosts,
            cause="; ".join(said),
        )


@dataclass(slots=True)
class _Unheard:
    """Who is missing, as far as the store tells."""

    absent: list[int] = field(default_factory=list)
    silent: list[int] = field(default_factory=list)
    gave_up: list[int] = field(default_factory=list)
    hosts: dict[int, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


class _Words:
    """What ranks leave in the group's store for the case that a round fails."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._store = group.get_group_store()
        self._rank, self._size = group.rank(), group.size()
        name = group.group_name
        self._prefix = f"backend_caps/agreement/{_NUM_AGREEMENTS[name]}"
        _NUM_AGREEMENTS[name] += 1

    def leave(self, what: str, word: str) -> None:
        """Leave a word; nothing is waited for."""
        self._store.set(self._key(what, self._rank), word)

    def of_a_failure(self, round_name: str) -> _Unheard:
        """Tell the others that this rank's round failed, and find out who does not say so.

        It ends though the store may not answer.
        """
        found = _Unheard()
        asking = Thread(target=self._ask, args=(round_name, found), daemon=True)
        asking.start()
        asking.join(_ASKING_S + _ANSWERING_S)
        if asking.is_alive():
            return _Unheard(problems=[_no_store()])
        return found

    def _ask(self, round_name: str, found: _Unheard) -> None:
        try:
            everyone = range(self._size)
            found.gave_up += [rank for rank in everyone if self._has("gave-up", rank)]
            self.leave("gave-up", round_name)
            found.absent += [rank for rank in everyone if not self._has("came", rank)]
            found.silent += self._silent([rank for rank in everyone if rank not in found.absent])
            for rank in found.silent:
                found.hosts[rank] = self._store.get(self._key("came", rank)).decode()
        except RuntimeError:  # of any kind: the store's process is gone
            found.problems.append(_no_store())

    def _silent(self, ranks: Sequence[int]) -> list[int]:
        """Wait a little for ranks that came, and list those that say nothing more."""
        until = time.monotonic() + _ASKING_S
        silent = list(ranks)
        while silent := [own for own in silent if not self._is_heard(own)]:
            if time.monotonic() > until:
                break
            time.sleep(_AGAIN_S)
        return silent

    def _is_heard(self, rank: int) -> bool:
        return self._has("gave-up", rank) or self._has("ended", rank)

    def _has(self, what: str, rank: int) -> bool:
        return self._store.check([self._key(what, rank)])

    def _key(self, what: str, rank: int) -> str:
        return f"{self._prefix}/{what}/{rank}"


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
