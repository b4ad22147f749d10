"""The schedulers of one server come to one decision, through the store of their process group.

Each leaves word of what it registered and decided, and reads the others'. No collective is called:
a scheduler without this plugin takes part in none, and the next one of SGLang's own would be taken
for it. What they came to stays there, for a scheduler that joins the running server.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

from torch import distributed as dist
from torch.distributed.distributed_c10d import Store

from backend_caps.capability.model import FrozenModel
from backend_caps.startup.errors import Difference, listed
from backend_caps.startup.statement import host_name
from backend_caps_sglang.errors import (
    NOTHING,
    LateSchedulerError,
    SchedulersDifferError,
    UnheardSchedulersError,
    entry_differences,
)

_LOG = logging.getLogger("backend_caps_sglang")
_KEYS = "backend_caps/sglang/1"
"""What the keys begin with; who says other words than these has another number."""
_READING_S = 5.0
"""How long a scheduler that is about to end waits at most until the others have read all words."""


class Word(FrozenModel):
    """What a scheduler says to the others."""

    host: str
    needs_cpu_seq_lens: bool
    registered: str
    """A digest of what it registered, which is read at length where digests differ."""


class Outcome(FrozenModel):
    """What schedulers came to, for those that come after it."""

    needs_cpu_seq_lens: bool
    entries: Mapping[str, str]
    """What each of them registered."""


@dataclass(frozen=True, slots=True)
class Schedulers:
    """The schedulers whose forwards are one another's: the ranks of SGLang's world."""

    store: Store
    rank: int
    """This one's number."""
    size: int

    @classmethod
    def of_process(cls) -> Schedulers | None:
        """Find those that this process runs with; None where it runs alone."""
        group = dist.group.WORLD if dist.is_initialized() else None
        if group is None or group.size() == 1:
            return None
        return cls(group.get_group_store(), group.rank(), group.size())

    def outcome(self) -> Outcome | None:
        """Read what was agreed before this one came; None where it takes part."""
        key = f"{_KEYS}/outcome"  # of worlds of any size: one that grows is still one server
        return Outcome.model_validate_json(self.store.get(key)) if self.store.check([key]) else None

    def leave(self, outcome: Outcome) -> None:
        """Leave what was agreed for who comes later; the first that does is believed."""
        self.store.compare_set(f"{_KEYS}/outcome", "", outcome.model_dump_json())

    def come(self, word: Word, entries: Mapping[str, str]) -> None:
        """Leave word; nothing is waited for."""
        self.store.set(self._key(f"entries/{self.rank}"), json.dumps(dict(entries)))
        self.store.set(self._key(f"word/{self.rank}"), word.model_dump_json())

    def absent(self, deadline_s: float) -> tuple[int, ...]:
        """Wait for the words of all: the numbers of those who did not come.

        The first that has all, or that waits no more, decides it for every one; who comes when
        that is decided waits no more either.
        """
        keys = [self._key(f"word/{rank}") for rank in range(self.size)]
        decided = self._key("absent")
        if not self.store.check([decided]):
            with suppress(dist.DistStoreError):  # the deadline
                self.store.wait(keys, timedelta(seconds=deadline_s))
        found = [rank for rank, key in enumerate(keys) if not self.store.check([key])]
        agreed = self.store.compare_set(decided, "", json.dumps(found))
        return tuple(json.loads(agreed))

    def words(self) -> list[Word]:
        """Read the words of all, once no one is absent."""
        return [Word.model_validate_json(said) for said in self._read("word")]

    def entries(self) -> list[dict[str, str]]:
        """Read what all registered."""
        return [json.loads(said) for said in self._read("entries")]

    def wait_until_read(self) -> None:
        """Wait until every scheduler has read what all registered; not for ever.

        The store ends with rank 0: the others could no longer read from it what they have to say.
        """
        with suppress(RuntimeError):  # the deadline, or a store that is gone
            self.store.set(self._key(f"read/{self.rank}"), "")
            keys = [self._key(f"read/{rank}") for rank in range(self.size)]
            self.store.wait(keys, timedelta(seconds=_READING_S))

    def _read(self, what: str) -> list[bytes]:
        keys = [self._key(f"{what}/{rank}") for rank in range(self.size)]
        said: list[bytes] = self.store.multi_get(keys)
        return said

    def _key(self, what: str) -> str:
        return f"{_KEYS}/{self.size}/{what}"


def joined(
    needs_cpu_seq_lens: bool,
    entries: Mapping[str, str],
    schedulers: Schedulers | None,
    *,
    deadline_s: float,
) -> bool:
    """Join this scheduler's decision with those of the others: True where any says so.

    Where one does not come, which is what one without this plugin does, that is one error in the
    log of every other, and the answer is True. One that comes when all is decided waits for nobody.

    Args:
        needs_cpu_seq_lens: what this one decided.
        entries: what it registered, by what it is.
        schedulers: who comes to one decision; None where this one is alone.
        deadline_s: seconds to wait for the others.

    Raises:
        SchedulersDifferError: one registered something else. Raised in every one.
        LateSchedulerError: the others have agreed before, and this one is not as they are.

    Stream: none. Sync: waits for every scheduler, on the host. Not for use under capture.
    """
    if schedulers is None:
        return needs_cpu_seq_lens
    if (earlier := schedulers.outcome()) is not None:
        return _joined_late(needs_cpu_seq_lens, entries, earlier, schedulers.rank)
    digest = hashlib.sha256(json.dumps(dict(entries), sort_keys=True).encode()).hexdigest()
    own = Word(host=host_name(), needs_cpu_seq_lens=needs_cpu_seq_lens, registered=digest)
    schedulers.come(own, entries)
    if absent := schedulers.absent(deadline_s):
        unheard = UnheardSchedulersError(ranks=absent, size=schedulers.size, deadline_s=deadline_s)
        _LOG.error("%s", unheard)
        return True
    words = schedulers.words()
    if len({word.registered for word in words}) > 1:
        differences = tuple(_differences(schedulers.entries(), words))
        schedulers.wait_until_read()
        raise SchedulersDifferError(differences=differences)
    answer = _any(words)
    schedulers.leave(Outcome(needs_cpu_seq_lens=answer, entries=entries))
    return answer


def _joined_late(
    needs_cpu_seq_lens: bool, entries: Mapping[str, str], earlier: Outcome, rank: int
) -> bool:
    """Take what the others agreed on, where this one can: they do not decide again."""
    if differences := tuple(_against(needs_cpu_seq_lens, entries, earlier)):
        raise LateSchedulerError(rank=rank, host=host_name(), differences=differences)
    if earlier.needs_cpu_seq_lens and not needs_cpu_seq_lens:
        _LOG.warning("needs_cpu_seq_lens=True was agreed on before this scheduler came")
    return earlier.needs_cpu_seq_lens


def _against(
    needs_cpu_seq_lens: bool, entries: Mapping[str, str], earlier: Outcome
) -> Iterator[str]:
    """Say of what keeps a late scheduler out what it is there, and what here."""
    yield from entry_differences(earlier.entries, entries)
    if needs_cpu_seq_lens and not earlier.needs_cpu_seq_lens:
        yield "needs_cpu_seq_lens is False there, and True here"


def _any(words: Sequence[Word]) -> bool:
    """Join the decisions, and say so where they are not the same."""
    needing = tuple(rank for rank, word in enumerate(words) if word.needs_cpu_seq_lens)
    if 0 < len(needing) < len(words):
        who = listed(needing, {rank: words[rank].host for rank in needing})
        _LOG.warning("needs_cpu_seq_lens=True in all %d schedulers, by %s", len(words), who)
    return bool(needing)


def _differences(entries: Sequence[Mapping[str, str]], words: Sequence[Word]) -> Iterator[str]:
    """Say of each entry that is not the same on all what it is on which of them."""
    hosts = {rank: word.host for rank, word in enumerate(words)}
    for name in sorted({name for own in entries for name in own}):
        held = ((own.get(name, NOTHING), (rank,)) for rank, own in enumerate(entries))
        if (found := Difference.among(name, held)) is not None:
            yield found.sentence(hosts)
