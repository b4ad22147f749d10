"""Trees of drafts, on the device.

Shapes: B requests in the batch, K candidates that a draft step keeps, S draft steps, N tokens in a
tree.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftTree:
    """A batch's drafts. Node 0 is the root: the last token of the request, whose keys and values
    are not stored yet. Parents come before their children.
    """

    tokens: Tensor
    """[B, N] int64, device: siblings differ."""
    parents: Tensor
    """[B, N] int64, device: the node that each continues; the root is its own."""
    depths: Tensor
    """[B, N] int64, device: 0 for the root."""
    visible: Tensor | None
    """[B, N, N] bool, device: visible[b, i, j] where j is i, or i continues it; None for a chain,
    where each token sees all before it."""
