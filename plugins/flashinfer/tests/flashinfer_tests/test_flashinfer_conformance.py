"""What is declared, before the kit's checks, over wrappers that compute in plain PyTorch.

They hold the adapter: what it plans, and when. FlashInfer's own kernels run on CUDA alone, and
`backend-caps check flashinfer --device cuda` tries those.
"""

from __future__ import annotations

import pytest

from backend_caps import discover
from backend_caps.kit import Check, Effort, Subject, Verdict, run_checks
from backend_caps.kit.checks import CHECKS
from backend_caps.kit.checks.hygiene import HYGIENE
from tests.cases import axis

from .anywhere import ANYWHERE

pytestmark = pytest.mark.usefixtures("fake_flashinfer")


UNCLAIMED = frozenset(
    {
        "mirror-absent",
        "mirror-bound",
        "context-bound",
        "metadata",
        "determinism",
        "batch-invariance",
    }
)
"""Checks of what it does not claim."""
ONE = Effort(seeds=range(1), num_steps=100)
"""One draw of each scenario: four are tried by the command."""
APPLYING = [check for check in CHECKS if check.code not in UNCLAIMED]


def test_checks_of_all_that_is_claimed_apply() -> None:
    """No check is left out but those of what is not claimed."""
    subject = Subject(name="flashinfer", declaration=ANYWHERE)

    excused = {check.code for check in CHECKS if check.excuse(subject) is not None}

    assert excused == UNCLAIMED


@axis("check", APPLYING, ids=lambda check: check.code)
def test_nothing_is_found_against_what_is_declared(check: Check) -> None:
    """In none of its cases does a check find a claim that does not hold."""
    subject = Subject(name="flashinfer", declaration=ANYWHERE)

    (result,) = run_checks(subject, [check], effort=ONE).checks

    assert [f"{own.fault.what}; {own.replay}" for own in result.findings] == []
    assert (result.status, result.num_blocked) == (Verdict.HELD, 0), result.reason


def test_nothing_is_found_against_the_declaration_itself() -> None:
    """As it is installed, and not as it stands above, it is data and the plugin's own."""
    subject = Subject.of(discover()["flashinfer"])

    findings = run_checks(subject, [HYGIENE]).findings

    assert [own.fault.what for own in findings] == []
