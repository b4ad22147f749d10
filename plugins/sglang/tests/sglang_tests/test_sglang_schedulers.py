"""Schedulers that come to one decision: threads of this process, over a store of torch's."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from backend_caps_sglang.errors import (
    LateSchedulerError,
    SchedulersDifferError,
    UnheardSchedulersError,
)
from backend_caps_sglang.schedulers import Schedulers, joined
from torch.distributed import HashStore  # type: ignore[attr-defined] # torch has it there

ENTRIES = {"backend 'fast'": "acme:make (acme 1.0)"}
HOST = socket.gethostname()
LONG_S, SHORT_S = 30.0, 0.2


def all_join(
    decided: Sequence[bool],
    entries: Sequence[Mapping[str, str]] | None = None,
    store: HashStore | None = None,
) -> list[bool | BaseException | None]:
    """Let each scheduler decide, all at once: its answer, or what it raised."""
    store, size = store or HashStore(), len(decided)
    registered = entries or [ENTRIES] * size
    with ThreadPoolExecutor(size) as pool:
        joining = [
            pool.submit(
                joined, own, registered[rank], Schedulers(store, rank, size), deadline_s=LONG_S
            )
            for rank, own in enumerate(decided)
        ]
    return [each.exception() or each.result() for each in joining]


def joins(store: HashStore, rank: int, size: int, deadline_s: float) -> bool:
    """Let one scheduler decide that it needs nothing, and join the others."""
    answer = False
    return joined(answer, ENTRIES, Schedulers(store, rank, size), deadline_s=deadline_s)


@pytest.mark.parametrize("needs", [True, False])
def test_schedulers_that_agree_keep_their_answer(
    needs: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Where all decide the same, that is the answer, and nothing is reported."""
    assert (all_join([needs] * 3), caplog.messages) == ([needs] * 3, [])


def test_one_that_needs_the_lengths_is_enough(caplog: pytest.LogCaptureFixture) -> None:
    """The answer is the join of all, and each says who made it so."""
    answers = all_join([False, True, False])

    told = f"needs_cpu_seq_lens=True in all 3 schedulers, by rank 1 ({HOST})"
    assert (answers, caplog.messages) == ([True] * 3, [told] * 3)


def test_schedulers_that_registered_other_things_all_fail() -> None:
    """The error is the same on every one: what differs, its values and whose they are."""
    first, *others = all_join([False] * 3, [ENTRIES, {}, ENTRIES])

    assert isinstance(first, SchedulersDifferError)
    assert [str(each) for each in others] == [str(first)] * 2
    assert (
        f"backend 'fast' is acme:make (acme 1.0) on ranks 0 ({HOST}) and 2 ({HOST}); nothing on "
        f"rank 1 ({HOST})."
    ) in str(first)


class SlowSchedulers(Schedulers):
    """One that is slow to read what the others registered."""

    def entries(self) -> list[dict[str, str]]:
        """Read late."""
        time.sleep(SHORT_S)
        return Schedulers.entries(self)


def test_scheduler_that_fails_keeps_the_store_until_the_others_have_read() -> None:
    """Rank 0's process ends by the error, and with it the store that the others read it from."""
    store = HashStore()
    slow = SlowSchedulers(store, 1, 2)
    with ThreadPoolExecutor(2) as pool:
        other = pool.submit(joined, False, {}, slow, deadline_s=LONG_S)  # noqa: FBT003 - its place
        first = pool.submit(joined, False, ENTRIES, Schedulers(store, 0, 2), deadline_s=LONG_S)  # noqa: FBT003

        assert isinstance(first.exception(), SchedulersDifferError)
        assert store.check(["backend_caps/sglang/1/2/read/1"])
    assert str(other.exception()) == str(first.exception())


def test_scheduler_that_does_not_come_is_named(caplog: pytest.LogCaptureFixture) -> None:
    """One without the plugin says nothing: the others know it by then, and need the lengths."""
    answer = joins(HashStore(), 0, 3, SHORT_S)

    (told,) = caplog.messages
    assert answer
    assert told == (
        "of 3 schedulers, ranks 1 and 2 did not say within 0.2 s what was registered and decided, "
        "so needs_cpu_seq_lens is True in the others; backend-caps-sglang was expected in all. "
        "Install it on the machines of these ranks, or look in their logs for why it was refused; "
        "where they are only slow, give more in BACKEND_CAPS_AGREEMENT_DEADLINE."
    )


def test_scheduler_that_comes_too_late_gives_the_others_answer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What was decided without it holds for it as well, at once."""
    store = HashStore()
    joins(store, 0, 2, SHORT_S)
    began = time.monotonic()

    answer = joins(store, 1, 2, LONG_S)

    assert (answer, time.monotonic() - began < LONG_S) == (True, True)
    assert ["rank 1 did not say" in line for line in caplog.messages] == [True, True]


class Decided(HashStore):
    """A store in which nobody waits any more, once all is decided."""

    is_decided = False

    def wait(self, keys: list[str], timeout: timedelta = timedelta(seconds=LONG_S)) -> None:
        """Wait as a store does, while there is something to wait for."""
        assert not self.is_decided, "all was decided before"
        super().wait(keys, timeout)


def agreed(*, needs: bool) -> Decided:
    """Let the first two schedulers of a server agree."""
    store = Decided()
    all_join([needs, needs], store=store)
    store.is_decided = True
    return store


@pytest.mark.parametrize(
    ("rank", "size"), [pytest.param(1, 2, id="another in its place"), pytest.param(2, 3, id="more")]
)
def test_scheduler_that_joins_a_running_server_takes_its_answer(rank: int, size: int) -> None:
    """It waits for nobody: those that decided before do not decide again."""
    store = agreed(needs=False)

    answer = joins(store, rank, size, LONG_S)

    assert answer is False


def test_scheduler_that_joins_where_lengths_are_needed_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The others' need is its own, whatever it decides by itself."""
    store = agreed(needs=True)

    answer = joins(store, 2, 3, LONG_S)

    told = "needs_cpu_seq_lens=True was agreed on before this scheduler came"
    assert (answer, caplog.messages) == (True, [told])


@pytest.mark.parametrize(
    ("needs", "entries", "told"),
    [
        pytest.param(
            True, ENTRIES, "needs_cpu_seq_lens is False there, and True here", id="needs them"
        ),
        pytest.param(
            False,
            {},
            "backend 'fast' is acme:make (acme 1.0) there, and nothing here",
            id="registered something else",
        ),
    ],
)
def test_scheduler_that_joins_and_is_not_as_the_others_is_refused(
    needs: bool, entries: Mapping[str, str], told: str
) -> None:
    """What it needs the others do not give, so it does not start, and says why."""
    late = Schedulers(agreed(needs=False), 2, 3)

    with pytest.raises(LateSchedulerError) as raised:
        joined(needs, entries, late, deadline_s=LONG_S)

    assert str(raised.value) == (
        f"the scheduler of rank 2 ({HOST}) joins a server whose schedulers have agreed, and is not "
        f"as they are: {told}. It was expected to be the same: give it their flags, distributions "
        "and variables, or start all again, so that they decide together."
    )


def test_late_scheduler_does_not_wait_for_others_that_are_absent() -> None:
    """Of two that did not come in time, the first that comes knows at once."""
    store = Decided()
    joins(store, 0, 3, SHORT_S)
    store.is_decided = True

    answer = joins(store, 1, 3, LONG_S)

    assert answer is True


def test_scheduler_alone_decides_alone(caplog: pytest.LogCaptureFixture) -> None:
    """Without a process group there is nobody to ask."""
    caplog.set_level(logging.INFO)

    answers = [
        joined(own, ENTRIES, Schedulers.of_process(), deadline_s=LONG_S) for own in (True, False)
    ]

    assert (answers, caplog.messages) == ([True, False], [])


def test_unheard_schedulers_are_listed_in_short() -> None:
    """Of many ranks the first are named."""
    many = UnheardSchedulersError(ranks=tuple(range(1, 64)), size=64, deadline_s=60.0)

    assert "ranks 1, 2, 3, 4, 5, 6, 7, 8 and 55 more did not say within 60 s" in str(many)
