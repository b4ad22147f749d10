"""What a drafter hands from one step to the next.

Shapes: B requests in the batch, K candidates, H hidden features.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from backend_caps.relay.streams import EventLike


@dataclass(slots=True, kw_only=True)
class DraftState:
    """A batch's `spec_info`: empty when it is built, filled by `FutureMap.resolve_future`."""

    topk_p: Tensor | None = None
    """[B, K] float32, device: probabilities of the first drafts."""
    topk_index: Tensor | None = None
    """[B, K] int64, device: the first drafts."""
    bonus_tokens: Tensor | None = None
    """[B] int64, device: each request's last token, which the drafts continue."""
    hidden_states: Tensor | None = None
    """[B, H] device: where a draft head goes on from; None where the draft reads none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """What a drafter leaves of a step, once it has read what was accepted."""

    state: DraftState
    reads_done: EventLike | None = None
    """Behind its last read of buffers that the scheduler writes; None where nobody marked it."""
