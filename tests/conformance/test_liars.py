from __future__ import annotations

import pytest

from backend_caps.conformance.checks import CHECKS
from backend_caps.conformance.kit import Effort, Verdict, run_checks
from tests.conformance.liars.everyone import LIARS
from tests.conformance.liars.liar import Liar

pytestmark = pytest.mark.no_cover  # checks and kit have tests of their own


@pytest.mark.parametrize("own", LIARS, ids=lambda own: own.name)
def test_liar_is_failed_by_one_check(own: Liar) -> None:
    """The check that is about the lie finds it, and no other one finds anything."""
    results = run_checks(own.subject, CHECKS, effort=Effort.quick())

    failed = [each.check.code for each in results.checks if each.status is Verdict.FAILED]
    assert failed == [own.check], "\n".join(str(each) for each in results.findings)
