from __future__ import annotations

import pytest

from backend_caps.kit import Effort, run_case
from backend_caps.kit.checks import CHECKS
from tests.kit.liars.everyone import LIARS
from tests.kit.liars.liar import Liar

pytestmark = pytest.mark.no_cover  # checks and kit have tests of their own


@pytest.mark.parametrize("own", LIARS, ids=lambda own: own.name)
def test_liar_is_failed_by_its_check(own: Liar) -> None:
    """The check that is about the lie finds it; `make liars` shows that no other one does."""
    (check,) = (each for each in CHECKS if each.code == own.check)
    cases = check.cases(own.subject, Effort.quick())

    is_found = any(run_case(own.subject, check, case).findings for case in cases)

    assert check.excuse(own.subject) is None
    assert is_found
