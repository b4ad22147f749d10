"""What crosses between ranks, and how much of it: ranks of one process, up to a thousand."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from backend_caps import Plan, resolve
from backend_caps.resolution.rules import RuleSet
from backend_caps.startup.agreement import Statement, statement_of
from backend_caps.startup.errors import RanksDifferError
from tests.startup.agreement.made import OPTS_OUT, READS, flagged, registry
from tests.startup.agreement.together import agree_together, hear_together

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
