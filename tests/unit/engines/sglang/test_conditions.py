from __future__ import annotations

import ast

from backend_caps.engines.sglang.conditions import can_hold, given_of
from tests.unit.engines.tables import table


def _guards(*texts: str) -> list[ast.expr]:
    return [ast.parse(text, mode="eval").body for text in texts]


@table("sglang_conditions", "condition_is_written_in_our_vocabulary")
def test_condition_is_written_in_our_vocabulary(guard: str, given: str) -> None:
    """What flags and facts decide is asked of them, the rest keeps the source's words."""
    assert str(given_of(_guards(guard))) == given


def test_no_guard_is_no_condition() -> None:
    """What always runs is under no condition."""
    assert given_of([]) is None


def test_two_conditions_on_one_thing_ask_for_what_is_both() -> None:
    """Guards of one name are joined to what satisfies both."""
    given = given_of(_guards("not is_npu()", "not is_cpu()", "is_xpu()"))

    assert str(given) == "device = xpu"


@table("sglang_conditions", "contradiction_stays_open_in_words")
def test_contradiction_stays_open_in_words(first: str, second: str) -> None:
    """A guard that contradicts the ones before it is never lost: its words stay."""
    given = given_of(_guards(first, second))

    assert given is not None
    assert given.expression == second


@table("sglang_conditions", "guards_that_contradict_each_other_cannot_hold")
def test_guards_that_contradict_each_other_cannot_hold(guards: list[str], answer: bool) -> None:
    """Only what the platform, which stays the same, contradicts is ruled out."""
    assert can_hold(_guards(*guards)) is answer
