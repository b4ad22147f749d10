"""Trees of drafts, on the device.

Shapes: B requests in the batch, K candidates that a draft step keeps, S draft steps, N tokens in a
tree.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftTree:
    """A batch's drafts.

    Node 0 is the root: the last token of the request, whose keys and values are not stored yet.
    Parents come before their children.
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


def visible_nodes(parents: Tensor, num_steps: int) -> Tensor:
    """Tell for each node of a tree which nodes it continues.

    parents  [B, N] int64, device    a node's parent comes before it; the root is its own
    returns  [B, N, N] bool, device  `DraftTree.visible`

    Args:
        parents: as above.
        num_steps: the depth of the tree, or more.

    Stream: the current one. Sync: none. Allocates: the result, some times over.
    Keeps: nothing. Capture: yes.
    """
    num_nodes = parents.shape[1]
    own = torch.eye(num_nodes, dtype=torch.bool, device=parents.device)
    rows = parents.unsqueeze(2).expand(-1, -1, num_nodes)
    visible = own.expand(parents.shape[0], -1, -1)
    for _ in range(num_steps):
        visible = own | visible.gather(1, rows)
    return visible
