"""SGLang's own backends under the kit, and the checks that only they have."""

from dataclasses import replace

from backend_caps.kit import Check, Subject
from backend_caps.kit.check import EngineAdapter
from backend_caps.kit.checks import CHECKS
from backend_caps_sglang.kit.checks import VARIANT_CHECKS
from backend_caps_sglang.kit.draft_steps import DRAFT_CHECKS, is_container
from backend_caps_sglang.kit.engine_modules import stand_in_for_torchvision
from backend_caps_sglang.kit.linear_states import STATE_CHECKS, keeps_states
from backend_caps_sglang.kit.scripts import script_of
from backend_caps_sglang.kit.subjects import sglang_subject


def _fitting(check: Check) -> Check:
    """Excuse what an adapter has no part in."""
    if check.code == "serving":
        return replace(check, excuse=lambda _: _NOT_BUILT)
    return replace(check, excuse=lambda own: _elsewhere(own) or check.excuse(own))


def _elsewhere(subject: Subject) -> str | None:
    """Return which checks run a class that is no backend of plain attention; None: it is one."""
    if keeps_states(subject):
        return _KEPT
    return _STEPS if is_container(subject) else None


_NOT_BUILT = "this project's engine does not build SGLang's classes"
_STEPS = "it is a container of draft steps: draft-steps runs them"
_KEPT = "its layers keep states in place of a KV cache: linear-states runs them"
SGLANG_CHECKS: tuple[Check, ...] = (
    *map(_fitting, (*CHECKS, *VARIANT_CHECKS)),
    *DRAFT_CHECKS,
    *STATE_CHECKS,
)
"""The kit's own, and behind them those that only SGLang's backends have."""

ADAPTER = EngineAdapter(
    checks=SGLANG_CHECKS, subject=sglang_subject, script=script_of, prepare=stand_in_for_torchvision
)
"""What `backend-caps check --engine sglang` runs."""

__all__ = ["ADAPTER", "SGLANG_CHECKS", "sglang_subject"]
