"""Hundreds of drawn cases over gloo: no difference is missed, and none is seen where there is none.

All run in one job of four processes, for a group in which ranks differ is as good as before.
"""

from __future__ import annotations

from functools import partial

import pytest
from torch import distributed as dist

from tests.startup.agreement.cases import DIFFERENCES, FAILURES, HARMLESS, Case, drawn
from tests.startup.agreement.processes import run_ranks

_NUM_CASES = 200
_SIZE = 4
_Outcome = tuple[str, str]
"""A kind, and its text: of an error, or `plan` and its fingerprint."""


@pytest.fixture(scope="module")
def disagreeing() -> list[tuple[Case, list[_Outcome]]]:
    """What came of ranks that differ."""
    return _outcomes((*drawn(DIFFERENCES, _NUM_CASES - 30, 1), *drawn(FAILURES, 30, 2)))


@pytest.fixture(scope="module")
def agreeing() -> list[tuple[Case, list[_Outcome]]]:
    """What came of ranks that differ in what is their own."""
    return _outcomes((*drawn(HARMLESS, _NUM_CASES, 3),))


def _outcomes(cases: tuple[Case, ...]) -> list[tuple[Case, list[_Outcome]]]:
    came = run_ranks(_SIZE, partial(_all_of, cases))
    by_rank = [came[rank].value for rank in range(_SIZE)]
    told: list[list[_Outcome]] = [[] for _ in cases]
    for outcomes in by_rank:
        assert isinstance(outcomes, list), came
        for place, outcome in outcomes:
            told[place].append(outcome)
    return [*zip(cases, told, strict=True)]


def _all_of(cases: tuple[Case, ...], rank: int) -> list[tuple[int, _Outcome]]:
    groups = {size: dist.new_group(list(range(size))) for size in range(2, _SIZE + 1)}
    outcomes = []
    for place, case in enumerate(cases):
        if rank < case.size:
            group = groups[case.size]
            assert isinstance(group, dist.ProcessGroup), "this rank is a member"
            outcomes.append((place, _outcome(case, rank, group)))
    return outcomes


def _outcome(case: Case, rank: int, group: dist.ProcessGroup) -> _Outcome:
    try:
        plan = case.servers[rank].start(group)
    except Exception as error:  # noqa: BLE001 - whatever it is, the test looks at it
        return type(error).__name__, str(error)
    return "plan", plan.fingerprint


def test_cases_are_of_every_kind() -> None:
    """Each change is drawn, in groups of each size, on the first rank and on others."""
    cases = [*drawn(DIFFERENCES, _NUM_CASES - 30, 1)]

    assert {case.what for case in cases} == {*DIFFERENCES}
    assert {case.size for case in cases} == {2, 3, 4}
    assert {0 in case.others for case in cases} == {True, False}


@pytest.mark.slow
def test_no_difference_is_missed(disagreeing: list[tuple[Case, list[_Outcome]]]) -> None:
    """In none of the cases does a rank come to a plan."""
    assert len(disagreeing) == _NUM_CASES
    assert [case for case, told in disagreeing if any(kind == "plan" for kind, _ in told)] == []


def test_every_rank_is_told_the_field_and_who_has_what(
    disagreeing: list[tuple[Case, list[_Outcome]]],
) -> None:
    """All ranks have one text, with the field and the numbers of both sides."""
    wrong = [
        (case.what, told)
        for case, told in disagreeing
        if case.what in DIFFERENCES and not _names(case, told)
    ]

    assert wrong == []


def _names(case: Case, told: list[_Outcome]) -> bool:
    (kind, text), *others = {*told}
    sides = (case.others, frozenset(range(case.size)) - case.others)
    return (
        not others
        and len(told) == case.size
        and kind == "RanksDifferError"
        and f"{case.what} is " in text
        and all(f"{rank}" in text for side in sides for rank in side)
    )


def test_every_rank_is_told_who_failed_and_how(
    disagreeing: list[tuple[Case, list[_Outcome]]],
) -> None:
    """Who fails raises its own error; the others name it."""
    wrong = [
        (case.what, told)
        for case, told in disagreeing
        if case.what in FAILURES and not _tells_failure(case, told)
    ]

    assert wrong == []


def _tells_failure(case: Case, told: list[_Outcome]) -> bool:
    failed = {told[rank] for rank in case.others}
    left = {told[rank] for rank in range(case.size) if rank not in case.others}
    (own_kind, _), *_ = failed
    ((kind, text),) = left
    return (own_kind, kind) == (case.what, "RankFailedError") and case.what in text


@pytest.mark.slow
def test_nothing_is_seen_where_there_is_nothing(
    agreeing: list[tuple[Case, list[_Outcome]]],
) -> None:
    """What is a rank's own is never refused, and all ranks have one plan."""
    assert len(agreeing) == _NUM_CASES
    assert [(case.what, told) for case, told in agreeing if len({*told}) != 1] == []
    assert {told[0][0] for _, told in agreeing} == {"plan"}
