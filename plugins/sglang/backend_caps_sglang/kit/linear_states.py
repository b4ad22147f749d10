"""The checks of linear attention, over SGLang's classes."""

from __future__ import annotations

from functools import partial

import torch

from backend_caps.kit import Case, Check, Rig, Subject
from backend_caps.kit.states.checks import OTHER_KERNELS, StateAdapter, state_checks
from backend_caps_sglang.kit.classes import ADAPTED
from backend_caps_sglang.kit.engine_modules import load_sglang
from backend_caps_sglang.kit.linear_layers import LinearLayers
from backend_caps_sglang.kit.linear_runner import StateRunner


def keeps_states(subject: Subject) -> bool:
    """Return whether the layers of a class of SGLang's keep states in place of a KV cache."""
    return subject.name in ADAPTED and ADAPTED[subject.name].layers is not None


def _layers(subject: Subject, code: str) -> LinearLayers:
    """Make the layers that a check asks about."""
    adapted = ADAPTED[subject.name]
    make = adapted.other_layers if code == OTHER_KERNELS else adapted.layers
    assert make is not None, "a class that has none is excused"
    return make()


def _runner(rig: Rig, case: Case, *, overlapped: bool = False) -> StateRunner:
    own = rig.subject.load()
    assert isinstance(own, type), "SGLang's backends are classes"
    build = partial(ADAPTED[rig.subject.name].build, own)
    dtype: torch.dtype = getattr(torch, case.batch_scenario.dtype)
    layers = _layers(rig.subject, case.check)
    return StateRunner(rig, load_sglang(), build, layers, dtype, overlapped=overlapped)


def _excuse(subject: Subject, code: str) -> str | None:
    if not keeps_states(subject):
        return "its layers keep no states"
    has_others = ADAPTED[subject.name].other_layers is not None
    return "it has no other kernels" if code == OTHER_KERNELS and not has_others else None


STATE_CHECKS: tuple[Check, ...] = state_checks(
    StateAdapter(
        excuse=_excuse,
        dtypes=lambda subject, code: _layers(subject, code).dtypes,
        recurrence=lambda subject, case: _layers(subject, case.check),
        runner=_runner,
    )
)
"""What is asked of classes whose layers keep states."""
