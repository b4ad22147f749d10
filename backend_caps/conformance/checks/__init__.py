"""The checks, a file each, in the order in which they run."""

from backend_caps.conformance.checks import mirror_absent, mirror_bound, mirror_read, numerics
from backend_caps.conformance.kit.check import Check

CHECKS: tuple[Check, ...] = (
    numerics.CHECK,
    mirror_absent.CHECK,
    mirror_bound.CHECK,
    mirror_read.CHECK,
)
"""Every check, in the order in which they run."""

__all__ = ["CHECKS"]
