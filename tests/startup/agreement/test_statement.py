"""What ranks state, the channel that carries it, and what they agree on."""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from functools import cache
from pathlib import Path

import pytest
from torch import distributed as dist

from backend_caps import Facts, Plan, RuleSet, resolve
from backend_caps.resolution.selection import plan_for
from backend_caps.startup.agreement import Ranks, Statement, require_same, statement_of
from backend_caps.startup.channel import GroupChannel, is_over
from backend_caps.startup.errors import RanksDifferError, StartupError
from backend_caps.startup.statement import failure_of
from tests.startup.agreement.made import FLAGS, OPTS_OUT, READS, SERVER, Server, flagged, registry
from tests.startup.agreement.processes import run_ranks
from tests.startup.agreement.together import agree_together, hear_together


def _statement(facts: Facts | None = None, per_rank: frozenset[str] = frozenset()) -> Statement:
    return statement_of(
        plan_for(registry(), FLAGS, facts=facts, rules=RuleSet.builtin("sglang-0.5.13")),
        per_rank=per_rank,
    )


def _fields_that_differ(*statements: Statement) -> list[str]:
    said = [replace(own, ranks=(rank,)) for rank, own in enumerate(statements)]
    try:
        require_same(said)
    except RanksDifferError as error:
        return [each.field for each in error.differences]
    return []


def test_names_in_per_rank_are_the_same_on_all_ranks() -> None:
    """What one rank takes for its own, another that does not say so does not let pass."""
    one, other = _statement(per_rank=frozenset({"page_size"})), _statement()

    assert _fields_that_differ(one, other) == ["per_rank"]


@pytest.mark.parametrize(
    ("other", "fields"),
    [
        pytest.param(Facts(head_size=128), ["fact head_size"], id="another model"),
        pytest.param(Facts(), [], id="not known there"),
        pytest.param(Facts(head_size=64, compute_capability=(9, 0)), [], id="another machine"),
    ],
)
def test_facts_of_the_model_are_the_same_where_they_are_known(
    other: Facts, fields: list[str]
) -> None:
    """All ranks run one model, and each has a machine of its own."""
    own = _statement(Facts(head_size=64, compute_capability=(8, 0)))

    assert _fields_that_differ(own, _statement(other)) == fields


def test_fact_in_per_rank_may_differ() -> None:
    """A stage may keep its cache in another dtype, where that is said."""
    per_rank = frozenset({"kv_cache_dtype"})
    own, other = (
        _statement(Facts(kv_cache_dtype=dtype), per_rank) for dtype in ("bfloat16", "float16")
    )

    assert _fields_that_differ(own, other) == []


def test_every_fault_of_a_rank_is_reported() -> None:
    """A group of errors is reported by what is in it."""
    inner = ExceptionGroup("flags", [ValueError("one."), ValueError("two.")])

    failure = failure_of(ExceptionGroup("settings", [inner, TypeError("three.")])).failure

    assert failure == "ValueError: one; ValueError: two; TypeError: three"


def test_statement_takes_what_utf8_cannot_have() -> None:
    """A file's name in another encoding must not silence the rank that complains of it."""
    statement = failure_of(OSError("no file caps-\udce4.lock"))

    told = Statement.read(pickle.dumps(statement.at_length(None)))

    assert told.failure == "OSError: no file caps-\\udce4.lock"


_ALL_AGREE = ["the comparison of fingerprints", "the acknowledgement"]


@cache
def _rank(name: str = "acme", *, needs: bool = False) -> tuple[Plan, Statement]:
    """Make what a rank of a pipeline says whose stages may run different backends."""
    flags = flagged(attention_backend=name).flags
    known = registry({name: READS if needs else OPTS_OUT})
    plan = resolve(known.uses(flags), flags, rules=RuleSet.builtin("sglang-0.5.13"))
    return plan, statement_of(plan, per_rank=frozenset({"attention_backend"}))


@pytest.mark.parametrize("size", [1, 2, 8, 1024])
def test_ranks_that_agree_exchange_two_integers(size: int) -> None:
    """However many they are: 16 bytes a rank, a barrier, and nothing of the plan."""
    wire, came = agree_together([_rank()] * size)

    assert (wire.rounds, wire.num_bytes) == (_ALL_AGREE, 16)
    assert all(own is _rank()[0] for own in came)


@pytest.mark.slow
def test_what_ranks_that_differ_exchange_is_linear() -> None:
    """A rank more costs each 16 bytes, and what is said alike is heard once."""
    acme, needy = _rank("acme"), _rank("needy", needs=True)

    wires = {size: hear_together([*[acme] * (size - 1), needy])[0] for size in (8, 64, 1024)}

    grown = {
        (wires[64].num_bytes - wires[8].num_bytes) / (64 - 8),
        (wires[1024].num_bytes - wires[64].num_bytes) / (1024 - 64),
    }
    assert grown == {16.0}


def test_each_different_statement_is_heard_once() -> None:
    """Two stages of four ranks each speak once, by their lowest ranks."""
    wire, _ = agree_together([*[_rank()] * 4, *[_rank("needy", needs=True)] * 4])

    assert wire.rounds == [
        "the comparison of fingerprints",
        "the gathering of fingerprints",
        "the statement of rank 0",
        "the statement of rank 4",
        "the acknowledgement",
    ]


def test_refused_ranks_acknowledge_nothing() -> None:
    """Where all come to an error there is no plan to acknowledge."""
    plan, statement = _rank()
    fields = {**statement.fields, "rules": (statement.fields["rules"][0], "another")}
    other = replace(statement, fields=fields)

    wire, came = agree_together([(plan, statement), (plan, other)])

    assert {type(own) for own in came} == {RanksDifferError}
    assert "the acknowledgement" not in wire.rounds


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

    assert SERVER.start(mixed).needs_cpu_seq_lens is False


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
    """Who is not in the group learns so; the members agree without it."""
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
