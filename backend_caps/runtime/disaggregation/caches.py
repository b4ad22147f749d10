"""The caches of an engine that hands prompts over or takes them over.

Shapes: as in `disaggregation.states`; S tokens that a request has slots for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from backend_caps.runtime.disaggregation.handover import Layout
from backend_caps.runtime.disaggregation.states import PromptStates
from backend_caps.runtime.memory import RequestMemory, TokenToKVPool


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptCaches:
    """Where keys and values of prompts stand, and of which models they are."""

    memory: RequestMemory
    target: TokenToKVPool
    draft: TokenToKVPool | None
    """The cache of the model that drafts, in the same slots; None where none does."""
    num_slots_behind: int
    """Tokens behind a prompt that the draft has read."""
    model: str
    """The target's fingerprint."""
    draft_model: str | None
    """The fingerprint of the model that drafts."""

    def layouts(self, num_tokens: int) -> Mapping[str, Layout]:
        """Say what keys and values of a prompt of so many tokens have to be."""
        found = {
            "keys": self.target.layout_of_keys(num_tokens),
            "values": self.target.layout_of_values(num_tokens),
        }
        if self.draft is not None:
            num_drafted = num_tokens + self.num_slots_behind
            found["draft_keys"] = self.draft.layout_of_keys(num_drafted)
            found["draft_values"] = self.draft.layout_of_values(num_drafted)
        return found

    def slots(self, row: Tensor, num_tokens: int) -> Tensor:
        """Look up the slots of a prompt, and of what a draft has read behind it.

        row         [1] int64, device  the request's
        num_tokens  T
        returns     [S] int64, device

        Stream: the current one, which must be the schedule stream. Sync: none.
        """
        size = num_tokens + self.num_slots_behind
        positions = torch.arange(size, device=row.device)
        return self.memory.slots_of(row.expand(size), positions)

    def load(self, slots: Tensor, num_tokens: int) -> PromptStates:
        """Read the keys and values of a prompt into memory of their own.

        slots       [S] int64, device
        num_tokens  T

        Stream: the current one, which must be the forward stream. Sync: none.
        """
        keys, values = self.target.load(slots[:num_tokens])
        draft_keys, draft_values = (None, None) if self.draft is None else self.draft.load(slots)
        return PromptStates(
            keys=keys, values=values, draft_keys=draft_keys, draft_values=draft_values
        )

    def store(self, slots: Tensor, states: PromptStates) -> None:
        """Write the keys and values of a prompt to its slots.

        slots   [S] int64, device
        states  device

        Stream: the current one, behind all that was given to the forward stream. Sync: none.
        Keeps: nothing; all is copied from.
        """
        self.target.store(slots[: states.keys.shape[1]], states.keys, states.values)
        if self.draft is not None:
            assert states.draft_keys is not None, "a handover that fits has them"
            assert states.draft_values is not None, "a handover that fits has them"
            self.draft.store(slots, states.draft_keys, states.draft_values)
