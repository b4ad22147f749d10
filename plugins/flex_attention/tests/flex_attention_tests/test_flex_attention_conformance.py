"""What is declared, before the kit's checks: a little of each. `backend-caps check` tries more.

The simulated device has no compiler, so this is the eager path; kernels have tests of their own.
"""

from __future__ import annotations

import pytest

from backend_caps import discover
from backend_caps.kit import Check, Effort, Subject, Verdict, run_checks
from backend_caps.kit.checks import CHECKS

UNCLAIMED = frozenset({"batch-invariance"})
"""Checks of what it does not claim."""
ONE = Effort(seeds=range(1), num_steps=100)
"""One draw of each scenario: four are tried by the command."""
APPLYING = [check for check in CHECKS if check.code not in UNCLAIMED]


def test_checks_of_all_that_is_claimed_apply() -> None:
    """No check is left out but those of what is not claimed."""
    subject = Subject.of(discover()["flex_attention"])

    excused = {check.code for check in CHECKS if check.excuse(subject) is not None}

    assert excused == UNCLAIMED


@pytest.mark.parametrize("check", APPLYING, ids=lambda check: check.code)
def test_nothing_is_found_against_what_is_declared(check: Check) -> None:
    """In none of its cases does a check find a claim that does not hold."""
    subject = Subject.of(discover()["flex_attention"])

    (result,) = run_checks(subject, [check], effort=ONE).checks

    assert [f"{own.fault.what}; {own.replay}" for own in result.findings] == []
    assert (result.status, result.num_blocked) == (Verdict.HELD, 0), result.reason
