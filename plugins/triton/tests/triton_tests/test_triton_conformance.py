"""What is declared, before the kit's checks."""

from __future__ import annotations

import pytest

from backend_caps import discover
from backend_caps.kit import Check, Effort, Subject, Verdict, run_checks
from backend_caps.kit.checks import CHECKS

pytestmark = pytest.mark.slow

UNCLAIMED = frozenset({"mirror-bound", "mirror-read", "batch-invariance"})
"""Checks of what it does not claim."""
APPLYING = [check for check in CHECKS if check.code not in UNCLAIMED]
every_check = pytest.mark.parametrize("check", APPLYING, ids=lambda check: check.code)


@every_check
def test_nothing_is_found_against_what_is_declared(check: Check) -> None:
    """In none of its cases does a check find a claim that does not hold."""
    subject = Subject.of(discover()["triton"])

    (result,) = run_checks(subject, [check], effort=Effort()).checks

    assert [f"{own.fault.what}; {own.replay}" for own in result.findings] == []
    assert (result.status, result.num_blocked) == (Verdict.HELD, 0), result.reason
