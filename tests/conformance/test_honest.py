from __future__ import annotations

import pytest

from backend_caps.conformance.checks import CHECKS
from backend_caps.conformance.kit import Effort, Verdict, run_checks
from tests.conformance.honest.everyone import HONEST_ODD
from tests.conformance.honest.odd import Odd

pytestmark = pytest.mark.no_cover  # checks and kit have tests of their own


@pytest.mark.parametrize("own", HONEST_ODD, ids=lambda own: own.name)
def test_odd_backend_is_failed_by_no_check(own: Odd) -> None:
    """What looks like a lie and is none is not taken for one, and the check close to it ran."""
    results = run_checks(own.subject, CHECKS, effort=Effort.quick())

    held = {each.check.code for each in results.checks if each.status is Verdict.HELD}
    assert list(results.findings) == []
    assert own.check in held
