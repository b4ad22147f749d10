"""What a rank says of itself, and what of it is compared."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

from backend_caps import Facts
from backend_caps.resolution.rules import RuleSet
from backend_caps.resolution.selection import plan_for
from backend_caps.startup.agreement import Statement, require_same, statement_of
from backend_caps.startup.errors import RanksDifferError
from backend_caps.startup.statement import failure_of
from tests.startup.agreement.made import FLAGS, registry


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


def test_every_fault_of_a_rank_is_told() -> None:
    """A group of errors is told by what is in it."""
    inner = ExceptionGroup("flags", [ValueError("one."), ValueError("two.")])

    failure = failure_of(ExceptionGroup("settings", [inner, TypeError("three.")])).failure

    assert failure == "ValueError: one; ValueError: two; TypeError: three"


def test_statement_takes_what_utf8_cannot_have() -> None:
    """A file's name in another encoding must not silence the rank that complains of it."""
    statement = failure_of(OSError("no file caps-\udce4.lock"))

    told = Statement.read(pickle.dumps(statement.at_length(None)))

    assert told.failure == "OSError: no file caps-\\udce4.lock"
