from __future__ import annotations

import pytest

from backend_caps.kit import Effort, Verdict, run_checks
from backend_caps.kit.checks import CHECKS
from tests.kit.honest.everyone import HONEST_ODD
from tests.kit.honest.odd import Odd

pytestmark = pytest.mark.no_cover  # checks and kit have tests of their own

ONE = Effort(seeds=[0], num_steps=100)
"""One draw of each scenario: `make liars` takes more, before every check."""


@pytest.mark.parametrize("own", HONEST_ODD, ids=lambda own: own.name)
def test_odd_backend_passes_the_check_close_to_it(own: Odd) -> None:
    """What looks like a lie and is none is not taken for one; `make liars` runs all checks."""
    checks = [each for each in CHECKS if each.code == own.check]

    results = run_checks(own.subject, checks, effort=ONE)

    assert list(results.findings) == []
    assert [each.status for each in results.checks] == [Verdict.HELD]
