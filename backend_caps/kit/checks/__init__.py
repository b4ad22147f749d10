"""The checks, in the order in which they run: that of the catalog."""

from backend_caps.kit.check import Check
from backend_caps.kit.checks import (
    growth,
    hygiene,
    mirror,
    numerics,
    overlap,
    preparation,
    replay,
    writes,
)
from backend_caps.report.check_catalog import CATALOG

_MODULES = (growth, hygiene, mirror, numerics, overlap, preparation, replay, writes)
_FOUND = (own for module in _MODULES for own in vars(module).values() if isinstance(own, Check))
_BY_CODE = {own.code: own for own in _FOUND}
CHECKS: tuple[Check, ...] = tuple(_BY_CODE[code] for code in CATALOG)
"""Every check, in the order in which they run."""

__all__ = ["CHECKS"]
