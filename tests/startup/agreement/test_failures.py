"""What goes wrong on one rank ends on all of them, in time, and says where: with real processes."""

from __future__ import annotations

import os
import re
import signal
import socket
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest import mock

import pytest
from torch import distributed as dist

from backend_caps import HostSeqLens, Registry
from backend_caps.relay import DraftShape, RelayError
from backend_caps.resolution.errors import PlanRefusedError
from backend_caps.runtime.configuration import configure_engine
from backend_caps.runtime.model.errors import ModelError
from backend_caps.runtime.model.random_models import random_llama
from backend_caps.startup.agreement import Ranks
from backend_caps.startup.channel import GroupChannel, RoundOptions
from backend_caps.startup.errors import MissingRanksError, RankFailedError, RanksDifferError
from tests.cases import axis
from tests.startup.agreement.made import OPTS_OUT, READS, SERVER, Server, flagged, registry
from tests.startup.agreement.processes import Came, run_ranks

DEADLINE_S = 2.0
_IN_TIME_S = DEADLINE_S + 5.0
_LONG_S = 50.0


def _fingerprint(rank: int, others: Mapping[int, Server]) -> str:
    return others.get(rank, SERVER).start().fingerprint


def _start(others: Mapping[int, Server], size: int = 3) -> dict[int, Came]:
    """Start ranks, of which some are started with something else."""
    return run_ranks(size, partial(_fingerprint, others=others))


def test_backend_that_one_rank_lacks_is_reported_on_all() -> None:
    """Every rank reports the same: the field, both values, and who has which on what machine."""
    came = _start({2: replace(SERVER, registry=Registry.of([]))})

    assert {type(own.error) for own in came.values()} == {RanksDifferError}
    assert len({own.text for own in came.values()}) == 1
    assert "backend acme is acme-caps 1.0" in came[0].text
    assert "not read (backend-missing) on rank 2 (" in came[0].text


def test_model_that_is_missing_on_one_rank_stops_all(tmp_path: Path) -> None:
    """An error of `configure_engine` before there is a plan reaches the other ranks."""
    random_llama(tmp_path / "target")

    came = run_ranks(2, partial(_without_model, folder=tmp_path))

    assert {rank: type(own.error) for rank, own in came.items()} == {
        0: RankFailedError,
        1: ModelError,
    }
    assert "rank 1 (" in came[0].text
    assert max(own.seconds for own in came.values()) < _LONG_S / 2


def _without_model(rank: int, folder: Path) -> str:
    """Configure this package's engine, for a folder that rank 1 does not have."""
    assert dist.group.WORLD is not None, "a rank has a group"
    return configure_engine(
        SERVER.flags.updated({"speculative_algorithm": None}),
        folder / ("target" if rank == 0 else "lost"),
        device="cpu",
        registry=SERVER.registry,
        policy="quiet",
        group=Ranks(group=dist.group.WORLD, deadline_s=_LONG_S),
    ).plan.fingerprint


def _with_one_that_is_strict(rank: int) -> str:
    """Start without the plugin that the flags name, which only a strict rank refuses."""
    policy = "strict" if rank == 2 else "quiet"
    try:
        return replace(SERVER, registry=Registry.of([]), policy=policy).start().fingerprint
    except PlanRefusedError as error:
        return " ".join(error.__notes__)  # which a pickle of the error has not


def test_policy_that_refuses_on_one_rank_is_named_on_all() -> None:
    """What a strict rank refuses the others do not: each error says that the policies differ."""
    came = run_ranks(3, _with_one_that_is_strict)

    told = [came[0].text, came[1].text, str(came[2].value)]
    assert {type(came[rank].error) for rank in (0, 1)} == {RankFailedError}
    assert ["policy is quiet on ranks 0" in each for each in told] == [True] * 3
    assert ["strict on rank 2" in each for each in told] == [True] * 3


def _with_one_late(rank: int, late_s: float, deadline_s: float) -> str:
    time.sleep(late_s * (rank == 2))
    return SERVER.start(deadline_s=deadline_s).fingerprint


@pytest.mark.parametrize(
    ("late_s", "deadline_s"),
    [
        pytest.param(1.5, 30.0, marks=pytest.mark.slow),
        pytest.param(20.0, 60.0, marks=pytest.mark.soak),
    ],
)
def test_rank_that_is_late_is_waited_for(late_s: float, deadline_s: float) -> None:
    """A rank that comes before the deadline is no reason to give up."""
    came = run_ranks(3, partial(_with_one_late, late_s=late_s, deadline_s=deadline_s))

    assert {own.error for own in came.values()} == {None}


@pytest.mark.slow
def test_rank_that_is_too_late_is_named() -> None:
    """The others say who did not come, and who comes too late that they had given up."""
    came = run_ranks(3, partial(_with_one_late, late_s=8.0, deadline_s=DEADLINE_S))

    assert {type(own.error) for own in came.values()} == {MissingRanksError}
    assert "rank 2 did not come" in came[0].text
    assert "rank 2 did not come" in came[1].text
    assert re.search("rank [01] gave up before", came[2].text)
    assert max(came[rank].seconds for rank in (0, 1)) < _IN_TIME_S


def _with_one_that_ends(rank: int, lost: int) -> str:
    if rank == lost:
        os.kill(os.getpid(), signal.SIGKILL)
    return SERVER.start(deadline_s=DEADLINE_S).fingerprint


@axis("lost", [0, 2])
def test_rank_that_never_comes_is_named(lost: int) -> None:
    """The job ends on the others; without rank 0 there is no store to ask, which is said."""
    came = run_ranks(3, partial(_with_one_that_ends, lost=lost))

    left = [own for rank, own in came.items() if rank != lost]
    assert {type(own.error) for own in left} == {MissingRanksError}
    told = "rank 0 of the job keeps: that rank is gone" if lost == 0 else "rank 2 did not come"
    assert all(told in own.text for own in left)
    assert max(own.seconds for own in left) < _IN_TIME_S


def _with_a_store_that_stops(rank: int) -> str:
    if rank == 0:
        os.kill(os.getpid(), signal.SIGSTOP)
    return SERVER.start(deadline_s=DEADLINE_S).fingerprint


@pytest.mark.slow
def test_rank_whose_store_hangs_is_not_held_up() -> None:
    """Rank 0 keeps the store: where its machine stops, the others still end in time, and say so."""
    came = run_ranks(3, _with_a_store_that_stops, silent=frozenset({0}))

    assert {type(own.error) for own in came.values()} == {MissingRanksError}
    assert all("that rank is gone, or hangs" in own.text for own in came.values())
    assert max(own.seconds for own in came.values()) < _IN_TIME_S


def _again_without_a_store(rank: int) -> list[str]:
    SERVER.start()
    if rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return [_error_of_another_start() for _ in range(3)]


def _error_of_another_start() -> str:
    time.sleep(0.5)
    try:
        return SERVER.start(deadline_s=DEADLINE_S).fingerprint
    except Exception as error:  # noqa: BLE001 - whatever it is, the test looks at it
        return type(error).__name__


@pytest.mark.slow
def test_store_that_is_gone_is_a_missing_rank() -> None:
    """A word that a lost store does not take is no error of its own."""
    assert run_ranks(2, _again_without_a_store)[1].value == ["MissingRanksError"] * 3


def _with_a_draft_of_its_own(rank: int) -> str:
    """Start a pipeline whose last stage alone drafts, and keeps a bound."""
    bounded = OPTS_OUT.model_copy(update={"host_seq_lens": HostSeqLens.UPPER_BOUND})
    own = replace(
        flagged(attention_backend="bounded") if rank else SERVER,
        registry=registry({"acme": OPTS_OUT, "bounded": bounded}),
        draft=DraftShape(topk=1, accept_tokens=4) if rank else None,
        per_rank=frozenset({"attention_backend", "draft"}),
    )
    return own.start().fingerprint


def test_rank_that_cannot_keep_the_joint_bound_stops_all() -> None:
    """What a rank cannot start from is known before any has a plan."""
    came = run_ranks(2, _with_a_draft_of_its_own)

    assert isinstance(came[0].error, RelayError)
    assert isinstance(came[1].error, RankFailedError)
    assert "rank 0 (" in came[1].text


_COMPARING, _ENDING = "the comparison of fingerprints", "the acknowledgement"
_DIFFER = {1: replace(SERVER, registry=registry(version="1.1"))}


class _Ending(GroupChannel):
    """Sends its own process a signal on entering a round."""

    round_name = ""
    signal = signal.SIGKILL

    def _wait(self, options: RoundOptions, round_name: str, start: Callable[[], dist.Work]) -> None:
        if round_name == self.round_name:
            os.kill(os.getpid(), self.signal)
        super()._wait(options, round_name, start)


def _with_one_that_ends_in(
    rank: int, round_name: str, lost: int, others: Mapping[int, Server]
) -> str:
    own = others.get(rank, SERVER)
    if rank != lost:
        return own.start(deadline_s=_LONG_S).fingerprint
    _Ending.round_name = round_name
    with mock.patch("backend_caps.startup.agreement.GroupChannel", _Ending):
        return own.start().fingerprint


@axis(
    ("round_name", "lost", "others"),
    [
        pytest.param(_COMPARING, 3, {}, id="comparing"),
        pytest.param("the gathering of fingerprints", 3, _DIFFER, id="gathering"),
        pytest.param("the statement of rank 1", 1, _DIFFER, id="speaking"),
        pytest.param(_ENDING, 3, {}, id="ending"),
    ],
)
def test_rank_that_is_killed_within_a_round_is_named(
    round_name: str, lost: int, others: Mapping[int, Server]
) -> None:
    """Whichever round it is, the others end soon, long before the deadline, none with a plan."""
    work = partial(_with_one_that_ends_in, round_name=round_name, lost=lost, others=others)

    came = run_ranks(4, work)

    left = [own for rank, own in came.items() if rank != lost]
    assert {type(own.error) for own in left} == {MissingRanksError}
    assert all(f"in {round_name}" in own.text for own in left)
    assert all(f"rank {lost} (" in own.text for own in left)
    assert max(own.seconds for own in left) < _LONG_S / 2


def test_two_servers_on_one_host_do_not_meet() -> None:
    """Jobs that start at the same time each agree on their own, all ranks on one plan."""
    reading = replace(SERVER, registry=registry({"acme": READS}))
    jobs: tuple[Mapping[int, Server], ...] = ({}, {0: reading, 1: reading})

    with ThreadPoolExecutor() as pool:
        one, other = pool.map(partial(_start, size=2), jobs)

    assert {own.error for job in (one, other) for own in job.values()} == {None}
    assert one[0].value == one[1].value != other[0].value == other[1].value


def test_stage_with_another_backend_raises_the_need_of_all() -> None:
    """A flag that may differ is no error; what one stage needs all have, and the cause says who."""
    came = run_ranks(3, _staged)

    assert {own.error for own in came.values()} == {None}
    (told,) = {own.value for own in came.values()}
    assert told == ("exact", "needy", 2, socket.gethostname())


def _staged(rank: int) -> tuple[object, ...]:
    """Start a pipeline whose last stage runs another backend."""
    own = flagged(attention_backend="needy") if rank == 2 else SERVER
    known = registry({"acme": OPTS_OUT, "needy": READS})
    plan = replace(own, registry=known, per_rank=frozenset({"attention_backend"})).start()
    cause = plan["host_seq_lens"].causes[0]
    return plan.host_seq_lens.value, cause.name, cause.rank, cause.host


def _ending_by_os_exit(rank: int, folder: Path) -> None:
    """Start as a server does that ends by `os._exit`; the last rank but one stops in a round."""
    if rank == 2:
        _Ending.round_name, _Ending.signal = _COMPARING, signal.SIGSTOP
        with mock.patch("backend_caps.startup.agreement.GroupChannel", _Ending):
            SERVER.start()
    try:
        SERVER.start(deadline_s=DEADLINE_S)
    except MissingRanksError as error:
        (folder / f"{rank}").write_text(str(error))
        os._exit(2)


@pytest.mark.slow
def test_first_diagnosis_of_a_hanging_rank_reaches_all(tmp_path: Path) -> None:
    """Rank 0 keeps the store, and ends as soon as it may: by then all others know what it found."""
    run_ranks(4, partial(_ending_by_os_exit, folder=tmp_path), silent=frozenset({2}))

    said = {rank: (tmp_path / f"{rank}").read_text() for rank in (0, 1, 3)}
    assert [rank for rank, text in said.items() if "rank 2 (" not in text] == []
