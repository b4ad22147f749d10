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
_BY_CODE = {
    value.code: value
    for module in _MODULES
    for value in vars(module).values()
    if isinstance(value, Check)
}
CHECKS: tuple[Check, ...] = tuple(_BY_CODE[code] for code in CATALOG)
"""Every check, in the order in which they run."""

__all__ = ["CHECKS"]
