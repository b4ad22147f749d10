"""What the relay carries for a request: known before the first step, never read off a payload.

Shapes: P rows in the request pool, B requests in a batch, K draft candidates, H hidden features.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from backend_caps.relay.errors import DraftShapeError


@dataclass(frozen=True, slots=True)
class DraftShape:
    """Describe what a draft worker hands from one step to the next.

    Raises:
        DraftShapeError: a size is below 1, or `hidden_size` and `dtype` come without each other.
    """

    topk: int
    """Candidates that a draft step keeps for each request."""
    hidden_size: int | None = None
    """Features of the hidden state; None where the draft reads none."""
    dtype: torch.dtype | None = None
    """The hidden state's dtype."""
    accept_tokens: int | None = None
    """The most tokens that one step can accept, the bonus token included."""

    def __post_init__(self) -> None:
        sizes = {
            "topk": self.topk,
            "hidden_size": self.hidden_size,
            "accept_tokens": self.accept_tokens,
        }
        for field, size in sizes.items():
            if size is not None and size < 1:
                raise DraftShapeError(field=field, value=size, expected="at least 1")
        if self.hidden_size is not None and self.dtype is None:
            expected = f"the dtype of the {self.hidden_size} hidden features"
            raise DraftShapeError(field="dtype", value=None, expected=expected)
        if self.hidden_size is None and self.dtype is not None:
            expected = f"the number of {self.dtype} features"
            raise DraftShapeError(field="hidden_size", value=None, expected=expected)


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayField:
    """One value of a request that crosses from a step to the next."""

    name: str
    """The payload's and `spec_info`'s name for it."""
    row_shape: tuple[int, ...] = ()
    """The shape of one request's value; empty for a number."""
    dtype: torch.dtype = torch.int64
    """How it is stored; other dtypes are converted when they are stashed."""

    @property
    def row_bytes(self) -> int:
        """The memory that one request's value takes."""
        return math.prod(self.row_shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayLayout:
    """The fields that a `FutureMap` carries, each with a row for every row of the pool."""

    seq_lens: RelayField = RelayField(name="seq_lens")
    """Tokens committed per request; what `publish` stores."""
    bonus_tokens: RelayField = RelayField(name="bonus_tokens")
    """The last token of each request; what `stash` stores in every mode."""
    draft: tuple[RelayField, ...] = ()
    """What `stash` stores beside the token for a draft worker."""

    @classmethod
    def from_draft(cls, draft: DraftShape | None) -> RelayLayout:
        """Lay out the relay for a draft worker; None is plain decode, or a draft without state."""
        if draft is None:
            return cls()
        fields = (
            RelayField(name="topk_p", row_shape=(draft.topk,), dtype=torch.float32),
            RelayField(name="topk_index", row_shape=(draft.topk,)),
        )
        if draft.hidden_size is None or draft.dtype is None:
            return cls(draft=fields)
        hidden = RelayField(name="hidden_states", row_shape=(draft.hidden_size,), dtype=draft.dtype)
        return cls(draft=(*fields, hidden))

    @property
    def fields(self) -> tuple[RelayField, ...]:
        """Every field, lengths and tokens first."""
        return (self.seq_lens, self.bonus_tokens, *self.draft)

    @property
    def row_bytes(self) -> int:
        """The device memory that one row of the pool takes in the relay."""
        return sum(field.row_bytes for field in self.fields)


@dataclass(slots=True)
class RelayPayload:
    """Carry one step's results into the relay.

    A field of the layout that is None keeps what its rows hold; one that the layout does not have
    is not relayed.
    """

    bonus_tokens: Tensor
    """[B], device: the token that each request's next step starts from."""
    topk_p: Tensor | None = None
    """[B, K], device: probabilities of the draft's candidates."""
    topk_index: Tensor | None = None
    """[B, K], device: the candidates."""
    hidden_states: Tensor | None = None
    """[B, H], device: the hidden state that the draft continues from."""
