"""Which checks apply to what is declared, and of `flex_attention` a little of each check.

`test_shipped_evidence_is_what_a_run_finds` runs all checks of `torch_native` and `torch_padded`;
Triton's and FlashInfer's plugins run theirs. The simulated device has no compiler, so of
`flex_attention` this is the eager path; its kernels have tests of their own.
"""

from __future__ import annotations

import pytest

from backend_caps import discover
from backend_caps.kit import Check, Effort, Subject, Verdict, run_checks
from backend_caps.kit.checks import CHECKS

pytestmark = pytest.mark.slow

UNCLAIMED = {
    "torch_native": frozenset(
        {
            *("mirror-absent", "mirror-bound", "context-bound", "padding-harmless"),
            *("replay", "metadata", "addresses", "reads-end"),
        }
    ),
    "torch_padded": frozenset({"mirror-bound", "mirror-read", "batch-invariance"}),
    "flex_attention": frozenset({"batch-invariance"}),
    "triton": frozenset({"mirror-bound", "mirror-read", "batch-invariance"}),
}
"""Checks of what each does not claim."""
FLEX = "flex_attention"


@pytest.mark.parametrize("name", UNCLAIMED)
def test_checks_of_all_that_is_claimed_apply(name: str) -> None:
    """No check is left out but those of what is not claimed."""
    subject = Subject.of(discover()[name])

    excused = {check.code for check in CHECKS if check.excuse(subject) is not None}

    assert excused == UNCLAIMED[name]


@pytest.mark.parametrize(
    "check",
    [each for each in CHECKS if each.code not in UNCLAIMED[FLEX]],
    ids=lambda check: check.code,
)
def test_nothing_is_found_against_what_is_declared(check: Check) -> None:
    """In none of its cases does a check find a claim that does not hold."""
    subject, effort = Subject.of(discover()[FLEX]), Effort(seeds=range(1), num_steps=100)

    (result,) = run_checks(subject, [check], effort=effort).checks

    assert [f"{own.fault.what}; {own.replay}" for own in result.findings] == []
    assert (result.status, result.num_blocked) == (Verdict.HELD, 0), result.reason
