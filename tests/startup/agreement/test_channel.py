"""What a group must be to carry an agreement, and what is refused before anything crosses."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from torch import distributed as dist

from backend_caps.startup.agreement import Ranks
from backend_caps.startup.channel import GroupChannel, is_over
from backend_caps.startup.errors import StartupError
from tests.startup.agreement.made import SERVER, Server
from tests.startup.agreement.processes import run_ranks


@pytest.fixture
def group(tmp_path: Path) -> Iterator[dist.ProcessGroup]:
    """Make a group of this process alone."""
    dist.init_process_group("gloo", f"file://{tmp_path}/store", rank=0, world_size=1)
    assert dist.group.WORLD is not None
    yield dist.group.WORLD
    dist.destroy_process_group()


def test_group_agrees_again(group: dist.ProcessGroup) -> None:
    """A group of one has its own plan, and is as good as before where nothing failed."""
    plans = [SERVER.start(group) for _ in range(3)]

    assert len({plan.fingerprint for plan in plans}) == 1
    assert plans[0].needs_cpu_seq_lens is False


class _Ending(dist.Work):
    """Ends while somebody stops waiting for it."""

    def __init__(self, *, fails: bool) -> None:
        super().__init__()
        self.num_waits, self._fails = 0, fails

    def wait(self, timeout: timedelta = timedelta()) -> bool:
        self.num_waits += 1
        if self.num_waits == 1 or self._fails:
            raise RuntimeError("timed out" if timeout else "failed")
        return True

    def is_completed(self) -> bool:
        return True


def test_round_that_ends_as_a_wait_does_has_not_failed() -> None:
    """The end of a little wait is no failure of the round, though both come at once."""
    assert is_over(_Ending(fails=False))


def test_round_that_fails_as_a_wait_ends_has_failed() -> None:
    """What is raised is what the round says, and not the little wait."""
    with pytest.raises(RuntimeError, match="failed"):
        is_over(_Ending(fails=True))


def test_group_that_is_made_anew_counts_anew(tmp_path: Path) -> None:
    """A process that has agreed before meets one that has not by the same words."""
    for turn in range(2):
        dist.init_process_group("gloo", f"file://{tmp_path}/{turn}", rank=0, world_size=1)
        assert dist.group.WORLD is not None
        SERVER.start(dist.group.WORLD)
        came = dist.group.WORLD.get_group_store().check(["backend_caps/agreement/0/came/0"])
        dist.destroy_process_group()

        assert came


@pytest.mark.usefixtures("group")
def test_mixed_group_talks_by_its_gloo() -> None:
    """A group that has nccl beside gloo, as engines make it, uses gloo alone."""
    mixed = dist.new_group(backend="cpu:gloo")
    assert isinstance(mixed, dist.ProcessGroup)

    plan = SERVER.start(mixed)

    assert plan.needs_cpu_seq_lens is False


def test_group_without_gloo_is_refused(
    group: dist.ProcessGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Control traffic never goes over nccl."""
    monkeypatch.setattr(dist, "get_backend_config", lambda _group: "cuda:nccl")

    with pytest.raises(StartupError, match="talks over cuda:nccl"):
        GroupChannel(group, host="node-a")


def _as_non_member(rank: int) -> str:
    group = dist.new_group([0])
    return SERVER.start(group).fingerprint if rank == 0 else _refused(SERVER, group)


def _refused(server: Server, group: dist.ProcessGroup) -> str:
    try:
        return server.start(group).fingerprint
    except StartupError as error:
        return str(error)


def test_rank_that_is_no_member_is_refused() -> None:
    """Who is not in the group is told so; the members agree without it."""
    came = run_ranks(2, _as_non_member)

    assert came[0].error is None
    assert "this rank is no member" in str(came[1].value)


def _two_of_three(rank: int) -> str:
    group = dist.new_group([1, 2])
    own = replace(SERVER, pool_size=16) if rank == 2 else SERVER
    return "" if rank == 0 else own.start(group).fingerprint


def test_ranks_are_named_by_their_numbers_in_the_job() -> None:
    """A group's second rank may be the job's third, and that is what its log is called."""
    came = run_ranks(3, _two_of_three)

    assert re.search(r"pool_size is 8 on rank 1 \(.*\); 16 on rank 2", came[1].text)


@pytest.mark.parametrize("deadline_s", [0.0, -1.0, 86_401.0, float("nan")])
def test_deadline_that_is_none_is_refused(group: dist.ProcessGroup, deadline_s: float) -> None:
    """A deadline is more than no time, and at most a day."""
    with pytest.raises(StartupError, match="at most 86400"):
        GroupChannel(group, host="node-a", deadline_s=deadline_s)


def test_per_rank_names_are_those_of_flags(group: dist.ProcessGroup) -> None:
    """What is no flag is named, beside all that are."""
    with pytest.raises(StartupError, match=r"'atention_backend'.*attention_backend"):
        Ranks(group=group, per_rank={"atention_backend", "pool_size"})
