"""The checks of linear attention, over vLLM's classes."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import cast

import torch

from backend_caps.kit import Case, Check, Forward, Rig, Subject
from backend_caps.kit.scenarios import VERIFIED
from backend_caps.kit.states.checks import (
    HOST_WAITS,
    OTHER_KERNELS,
    SHORT_PROMPTS,
    StateAdapter,
    short_prompts_check,
    state_checks,
)
from backend_caps_vllm.kit.classes import ADAPTED
from backend_caps_vllm.kit.engine_modules import load_vllm
from backend_caps_vllm.kit.linear_layers import LinearLayers
from backend_caps_vllm.kit.linear_runner import StateRunner
from backend_caps_vllm.kit.subjects import class_of

_EAGER = (Forward.PREFILL, Forward.CHUNK, Forward.MIXED, Forward.DECODE)


def keeps_states(subject: Subject) -> bool:
    """Return whether the layers of a class of vLLM's keep states in place of a KV cache."""
    return subject.name in ADAPTED and ADAPTED[subject.name].layers is not None


def _layers(subject: Subject, code: str, forward: Forward | None = None) -> LinearLayers:
    """Make the layers of a class, for stories with prompts that it takes for decodes, or without.

    Args:
        subject: the class.
        code: the check's.
        forward: that of its stories; a server that verifies has drafts in all its forwards.
    """
    make = ADAPTED[subject.name].layers
    assert make is not None, "a class that has none is excused"
    layers = make()
    if forward is Forward.VERIFY:
        layers.num_drafts = VERIFIED - 1
    # The simulated device takes an index by a host mask for a wait, which a builder has where
    # prompts are beside verifies; torch copies it from pinned memory (pytorch/pytorch#156384).
    layers.mixes_verifies = code != HOST_WAITS
    if code == SHORT_PROMPTS:
        layers.lengths = (1, 1, 2)
    else:  # a state that is wrong from its first token on would hide all else
        layers.shortest_prompt = 2 + layers.num_drafts
    return layers


def _dtypes(subject: Subject, code: str) -> Sequence[str]:
    return _layers(subject, code).dtypes


def _recurrence(subject: Subject, case: Case) -> LinearLayers:
    return _layers(subject, case.check, case.batch_scenario.forward)


def _runner(rig: Rig, case: Case, *, overlapped: bool = False) -> StateRunner:
    own = cast("SimpleNamespace", class_of(rig.subject.declaration))
    dtype: torch.dtype = getattr(torch, case.batch_scenario.dtype)
    layers = _recurrence(rig.subject, case)
    return StateRunner(rig, load_vllm(), own, layers, dtype, overlapped=overlapped)


def _excuse(subject: Subject, code: str) -> str | None:
    if not keeps_states(subject):
        return "its layers keep no states"
    return "it has no other kernels" if code == OTHER_KERNELS else None


def _forwards(subject: Subject) -> Sequence[Forward]:
    """List the forwards of a server, which verifies where it speculates."""
    return (*_EAGER, Forward.VERIFY) if _layers(subject, "").takes_drafts else _EAGER


def _captured(subject: Subject) -> Sequence[Forward]:
    """List the forwards of which vLLM captures full graphs: decodes, and verifies with drafts."""
    return [own for own in _forwards(subject) if own in {Forward.DECODE, Forward.VERIFY}]


_ADAPTER = StateAdapter(
    excuse=_excuse,
    recurrence=_recurrence,
    dtypes=_dtypes,
    runner=_runner,
    forwards=_forwards,
    captured=_captured,
)
STATE_CHECKS: tuple[Check, ...] = (*state_checks(_ADAPTER), short_prompts_check(_ADAPTER))
"""What is asked of classes whose layers keep states."""
