"""What is declared, before the kit's checks, by Triton's interpreter.

It takes seconds for a batch, so a little is tried here, and all of it by `make soak`.
"""

from __future__ import annotations

import pytest

from backend_caps import discover
from backend_caps.kit import Check, Effort, Subject, Verdict, run_case, run_checks
from backend_caps.kit.checks import CHECKS

pytestmark = pytest.mark.slow

UNCLAIMED = frozenset({"mirror-bound", "mirror-read", "batch-invariance"})
"""Checks of what it does not claim."""
APPLYING = [check for check in CHECKS if check.code not in UNCLAIMED]
A_LITTLE = Effort(seeds=range(1), num_steps=8)
WHOLE = frozenset({"numerics", "roles"})
"""Checks of which each case has something of its own: a dtype, a page size, a head size."""
every_check = pytest.mark.parametrize("check", APPLYING, ids=lambda check: check.code)


@every_check
def test_nothing_is_found_in_a_little(check: Check) -> None:
    """In all cases of what is computed, and in two of each other check, every claim holds."""
    subject = Subject.of(discover()["triton"])
    cases = list(check.cases(subject, A_LITTLE))
    step = 1 if check.code in WHOLE else -(-len(cases) // 2)

    results = [run_case(subject, check, own) for own in cases[::step]]

    found = [own for result in results for own in result.findings]
    assert [f"{own.fault.what}; {own.replay}" for own in found] == []
    assert {result.status for result in results} == {Verdict.HELD}


@pytest.mark.soak
@pytest.mark.timeout(7200)
@every_check
def test_nothing_is_found_against_what_is_declared(check: Check) -> None:
    """In none of its cases does a check find a claim that does not hold."""
    subject = Subject.of(discover()["triton"])

    (result,) = run_checks(subject, [check], effort=Effort()).checks

    assert [f"{own.fault.what}; {own.replay}" for own in result.findings] == []
    assert (result.status, result.num_blocked) == (Verdict.HELD, 0), result.reason
