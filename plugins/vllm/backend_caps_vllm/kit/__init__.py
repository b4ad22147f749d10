"""vLLM's own backends under the kit, on the simulated device."""

from dataclasses import replace

from backend_caps.kit import Check, Subject
from backend_caps.kit.check import EngineAdapter
from backend_caps.kit.checks import CHECKS
from backend_caps_vllm.kit.checks import OWN_CHECKS
from backend_caps_vllm.kit.classes import ADAPTED, NOT_ASKED
from backend_caps_vllm.kit.linear_states import STATE_CHECKS, keeps_states
from backend_caps_vllm.kit.scripts import prepare_vllm, script_of
from backend_caps_vllm.kit.subjects import vllm_subject


def _fitting(check: Check) -> Check:
    """Excuse what an adapter has no part in."""
    if check.code == "serving":
        return replace(check, excuse=lambda _: _NOT_BUILT)
    return replace(check, excuse=lambda own: _elsewhere(own) or check.excuse(own))


def _elsewhere(subject: Subject) -> str | None:
    """Return which checks run a class that is no backend of plain attention; None: it is one."""
    return _KEPT if keeps_states(subject) else None


_NOT_BUILT = "this project's engine does not build vLLM's classes"
_KEPT = "its layers keep states in place of a KV cache: linear-states runs them"
VLLM_CHECKS: tuple[Check, ...] = (*map(_fitting, (*CHECKS, *OWN_CHECKS)), *STATE_CHECKS)
"""The kit's own, and behind them those that only vLLM's backends have."""

ADAPTER = EngineAdapter(
    checks=VLLM_CHECKS, subject=vllm_subject, script=script_of, prepare=prepare_vllm
)
"""What `backend-caps check --engine vllm` runs."""

__all__ = ["ADAPTED", "ADAPTER", "NOT_ASKED", "VLLM_CHECKS", "vllm_subject"]
