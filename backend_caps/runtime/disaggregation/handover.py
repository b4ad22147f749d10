"""What crosses from the engine that runs a prompt to the one that goes on with it.

Shapes: as in `disaggregation.states`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from backend_caps.runtime.disaggregation.states import PromptStates
from backend_caps.runtime.request import Sampling


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Handover:
    """A request whose prompt has run. All of it is on the host; it can be pickled."""

    prompt: tuple[int, ...]
    """Its tokens."""
    sampling: Sampling
    """How its tokens are chosen, and when they end."""
    token: int
    """The first token of its output, which the prompt's forward made."""
    states: PromptStates
    """What its next step reads."""
    model: str
    """The fingerprint of the model that ran it."""
    draft_model: str | None
    """The fingerprint of the model that drafts; None where none does."""


Layout = tuple[tuple[int, ...], torch.dtype]
"""A tensor's shape and dtype."""


def misfits(
    handover: Handover, layouts: Mapping[str, Layout], model: str, draft_model: str | None
) -> Iterator[str]:
    """Say what a handover has otherwise than the engine that it was given to.

    What the engine does not read may be there: states of a draft, where it does not speculate.

    Args:
        handover: the request.
        layouts: what each tensor of its states has to be.
        model: the fingerprint of the engine's model.
        draft_model: the same of the model that drafts; None where none does.
    """
    if handover.model != model:
        yield f"it is of model {handover.model[:12]}, and the engine has {model[:12]}"
    if draft_model is not None and handover.draft_model != draft_model:
        of = "none" if handover.draft_model is None else handover.draft_model[:12]
        yield f"its draft model is {of}, and the engine has {draft_model[:12]}"
    found = handover.states.tensors
    for name, (shape, dtype) in layouts.items():
        own = found.get(name)
        if own is None:
            yield f"it has no {name}"
            continue
        if own.device.type != "cpu":
            yield f"its {name} are on {own.device}, and not on the host"
        if tuple(own.shape) != shape:
            yield f"its {name} have shape {tuple(own.shape)} instead of {shape}"
        if own.dtype is not dtype:
            yield f"its {name} are {own.dtype} instead of {dtype}"
