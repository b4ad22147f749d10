from __future__ import annotations

import pytest
from torch_native_caps import TORCH_NATIVE, TORCH_PADDED

from backend_caps import ANY, OneOf, Role
from backend_caps.kit import Check, CheckResult, Effort, Forward, Subject, Verdict, run_checks
from backend_caps.kit.checks.numerics import BATCH_INVARIANCE, NUMERICS, ROLES
from tests.kit.made import claiming

NATIVE = Subject(name="torch_native", declaration=TORCH_NATIVE)
PADDED = Subject(name="torch_padded", declaration=TORCH_PADDED)
INVARIANT = claiming(batch_invariant=True)
ONE = Effort(seeds=range(1))
TWO = Effort(seeds=range(2))


def _result(subject: Subject, check: Check, effort: Effort = TWO) -> CheckResult:
    return run_checks(subject, [check], device="cpu", effort=effort).checks[0]


def test_request_of_its_own_holds_in_every_batch() -> None:
    """A backend that computes rows by themselves is batch invariant."""
    result = _result(INVARIANT, BATCH_INVARIANCE)

    assert (result.status, len(result.cases)) == (Verdict.HELD, 22)


def test_numerics_takes_each_size_that_is_claimed() -> None:
    """Two seeds have each dtype, page size and head size, in a prompt and beside it."""
    cases = NUMERICS.cases(PADDED, TWO)

    scenarios = [own.scenario for own in cases if own.scenario is not None]
    sizes = {(own.dtype, own.page_size, own.head_size) for own in scenarios}
    assert {size for _, size, _ in sizes} == {1, 4, 16, 32, 64, 128, 256}
    assert {size for _, _, size in sizes} == {16, 32, 64, 80, 96, 128, 192, 256, 576}
    assert {dtype for dtype, _, _ in sizes} == {"float32", "float16", "bfloat16"}


def test_numerics_of_who_is_no_target_has_no_case() -> None:
    """A backend for drafts alone is left to the check of roles."""
    result = _result(claiming(roles={Role.DRAFT}), NUMERICS, ONE)

    assert result.reason == "it has no case for what is claimed"


def test_combined_sizes_are_those_claimed() -> None:
    """What is drawn together is claimed by itself."""
    subject = claiming(page_sizes=OneOf({16, 64}), head_sizes=OneOf({64}))

    scenarios = [own.scenario for own in NUMERICS.cases(subject, TWO)]

    taken = {(own.page_size, own.head_size) for own in scenarios if own is not None}
    assert taken == {(16, 64), (64, 64)}


@pytest.mark.parametrize(
    ("limit", "widths"),
    [(2, {2}), (3, {2, 3}), (4, {2, 3, 4}), (12, {2, 3, 8, 12}), (64, {2, 3, 8, 16})],
)
def test_trees_are_as_wide_as_claimed(limit: int, widths: set[int]) -> None:
    """The limit itself is tried, as far as it is sensible."""
    cases = ROLES.cases(claiming(max_speculative_topk=limit), ONE)

    scenarios = [own.scenario for own in cases if own.scenario is not None]
    assert {own.topk for own in scenarios if own.forward.is_tree} == widths


def test_wide_trees_hold() -> None:
    """A root of sixteen children, and as many beams, are right."""
    result = _result(claiming(max_speculative_topk=64, page_sizes=ANY), ROLES, ONE)

    assert result.status is Verdict.HELD


def test_draft_of_a_chain_is_a_decode() -> None:
    """A backend that drafts chains alone is tried with their steps."""
    cases = ROLES.cases(NATIVE, ONE)

    forwards = {own.scenario.forward for own in cases if own.scenario is not None}
    assert forwards == {Forward.DRAFT_EXTEND, Forward.DECODE}
