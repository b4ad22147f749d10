"""What ranks leave in their group's store beside the rounds: that they came, and that they left.

Nobody waits for these words. The first rank whose round fails reads them, finds out who is missing,
and leaves that for the others, which look for it now and then while they wait: gloo itself tells a
lost rank to its neighbours alone. The store ends with the process that keeps it, and a launcher may
end all ranks when one ends: so a rank whose round failed raises once all others have read the words
too. A store may stop answering, so whatever waits for its answer does so in a thread of its own.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from threading import Event, Thread
from weakref import WeakKeyDictionary

from pydantic import BaseModel
from torch import distributed as dist

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
    """One rank's words in its group's store, for one agreement.

    Args:
        group: whose store it is.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._store = group.get_group_store()
        self._rank, self._size = group.rank(), group.size()
        number = _NUM_AGREEMENTS.get(group, 0)
        _NUM_AGREEMENTS[group] = number + 1
        self._prefix = f"backend_caps/agreement/{number}"
        self._looking: Thread | None = None
        self._gave_up, self._over = Event(), Event()

    def come(self, host: str) -> None:
        """Say that this rank is there; nothing is waited for."""
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
            while not self._over.is_set() and not self._store.check([self._key("asking")]):
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
            if self._store.add(self._key("asking"), 1) == 1:
                own = self._missing()
                self._store.set(self._key("found"), own.model_dump_json())
                found.append(own)
            else:
                found.extend(self._heard())
            for known in found:
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
            hosts={rank: self._store.get(self._of("came", rank)).decode() for rank in silent},
        )

    def _heard(self) -> list[FoundMissing]:
        """Wait for what the first rank finds, as long as this rank waits for it."""
        until = time.monotonic() + FINDING_S
        while time.monotonic() < until:
            if self._store.check([self._key("found")]):
                return [FoundMissing.model_validate_json(self._store.get(self._key("found")))]
            time.sleep(_AGAIN_S)
        return []

    def _wait_until_heard(self, known: FoundMissing) -> None:
        """Wait until every rank that is not missing has read who is; not for ever."""
        num_expected = self._size - len(known.absent) - len(known.silent)
        num_heard = self._store.add(self._key("heard"), 1)
        until = time.monotonic() + _HEARING_S
        while num_heard < num_expected and time.monotonic() < until:
            time.sleep(_AGAIN_S)
            num_heard = self._store.add(self._key("heard"), 0)

    def _those(self, what: str, ranks: Sequence[int]) -> list[int]:
        """List those of some ranks that left a word."""
        if ranks and self._store.check([self._of(what, rank) for rank in ranks]):
            return [*ranks]
        return [rank for rank in ranks if self._store.check([self._of(what, rank)])]

    def _say(self, what: str, word: str) -> None:
        """Leave a word; a store that is gone takes none, and the rounds tell that."""
        with suppress(RuntimeError):
            self._store.set(self._of(what, self._rank), word)

    def _of(self, what: str, rank: int) -> str:
        return self._key(f"{what}/{rank}")

    def _key(self, what: str) -> str:
        return f"{self._prefix}/{what}"


def _no_store() -> str:
    """Say what it means that the store does not answer."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        return "the launcher's store does not answer, so who is missing is not known"
    return "the store does not answer, which rank 0 of the job keeps: that rank is gone, or hangs"
