"""What is declared, before the kit's checks: a little of each. `backend-caps check` tries more.

The simulated device has no compiler, so this is the eager path; kernels have tests of their own.
"""

from __future__ import annotations

import pytest

from backend_caps import discover
from backend_caps.conformance.checks import CHECKS
from backend_caps.conformance.kit import Check, Effort, Subject, run_checks


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.code)
def test_nothing_is_found_against_what_is_declared(check: Check) -> None:
    """In none of its cases does a check find a claim that does not hold."""
    subject = Subject.of(discover()["flex_attention"])

    (result,) = run_checks(subject, [check], effort=Effort.quick()).checks

    if not result.cases:
        pytest.skip(result.reason)
    assert [f"{own.fault.what}; {own.replay}" for own in result.findings] == []
