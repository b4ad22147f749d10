"""SGLang's own backends under the kit, and the checks that only they have."""

from dataclasses import replace

from backend_caps.kit import Check
from backend_caps.kit.check import EngineAdapter
from backend_caps.kit.checks import CHECKS
from backend_caps_sglang.kit.checks import VARIANT_CHECKS
from backend_caps_sglang.kit.subjects import TRIED, sglang_subject


def _fitting(check: Check) -> Check:
    """Excuse what an adapter has no part in."""
    if check.code != "serving":
        return check
    return replace(check, excuse=lambda _: "this project's engine does not build SGLang's classes")


SGLANG_CHECKS: tuple[Check, ...] = (*(_fitting(check) for check in CHECKS), *VARIANT_CHECKS)
"""The kit's own, and behind them those that only SGLang's backends have."""

ADAPTER = EngineAdapter(checks=SGLANG_CHECKS, subject=sglang_subject)
"""What `backend-caps check --engine sglang` runs."""

__all__ = ["ADAPTER", "SGLANG_CHECKS", "TRIED", "sglang_subject"]
