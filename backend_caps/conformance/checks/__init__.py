"""The checks, a file each, in the order in which they run."""

from backend_caps.conformance.checks import mirror_absent, numerics
from backend_caps.conformance.kit.check import Check

CHECKS: tuple[Check, ...] = (
    numerics.CHECK,
    mirror_absent.CHECK,
)
"""Every check, in the order in which they run."""

__all__ = ["CHECKS"]
