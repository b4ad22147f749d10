"""What is declared, before the kit's checks, over wrappers that compute in plain PyTorch.

They hold the adapter: what it plans, and when. FlashInfer's own kernels run on CUDA alone, and
`backend-caps check flashinfer --device cuda` tries those.
"""

from __future__ import annotations

import pytest

from backend_caps import discover
from backend_caps.conformance.checks import CHECKS, hygiene
from backend_caps.conformance.kit import Check, Effort, Subject, run_checks

from .anywhere import ANYWHERE

pytestmark = pytest.mark.usefixtures("fake_flashinfer")


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.code)
def test_nothing_is_found_against_what_is_declared(check: Check) -> None:
    """In none of its cases does a check find a claim that does not hold."""
    subject = Subject(name="flashinfer", declaration=ANYWHERE)

    (result,) = run_checks(subject, [check], effort=Effort.quick()).checks

    if not result.cases:
        pytest.skip(result.reason)
    assert [f"{own.fault.what}; {own.replay}" for own in result.findings] == []


def test_nothing_is_found_against_the_declaration_itself() -> None:
    """As it is installed, and not as it stands above, it is data and the plugin's own."""
    subject = Subject.of(discover()["flashinfer"])

    findings = run_checks(subject, [hygiene.CHECK]).findings

    assert [own.fault.what for own in findings] == []
