from __future__ import annotations

import pytest

from backend_caps.conformance.checks import CHECKS
from backend_caps.conformance.kit import Effort, Verdict, run_checks
from tests.conformance.liars.everyone import LIARS
from tests.conformance.liars.liar import Liar

pytestmark = pytest.mark.no_cover  # checks and kit have tests of their own


@pytest.mark.parametrize("own", LIARS, ids=lambda own: own.name)
def test_liar_is_failed_by_its_check(own: Liar) -> None:
    """The check that is about the lie finds it; `make liars` shows that no other one does."""
    checks = [each for each in CHECKS if each.code == own.check]

    results = run_checks(own.subject, checks, effort=Effort.quick())

    assert [each.status for each in results.checks] == [Verdict.FAILED]
