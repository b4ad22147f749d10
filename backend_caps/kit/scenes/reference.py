"""Attention as it is defined: one request at a time, in double precision."""

from __future__ import annotations

import torch
from torch import Tensor

from backend_caps.kit.scenes.scene import Scene


def reference_attention(scene: Scene) -> Tensor:
    """Attend from every new token of a scene to what it sees.

    The KV cache, the page table and the batch are not read: only what the scene says is true.

    returns  [T, Hq, Dv] float64, host; zeros for a token that sees nothing
    """
    queries = torch.split(scene.q.cpu().double(), list(scene.counts))
    outputs = [
        _one_request(q, keys.double(), values.double(), visible, scene.layer.scaling)
        for q, (keys, values), visible in zip(queries, scene.contexts, scene.visible, strict=True)
    ]
    width = scene.layer.tp_q_head_num, scene.layer.v_head_dim
    return torch.cat([torch.empty(0, *width, dtype=torch.float64), *outputs])


def _one_request(
    q: Tensor, keys: Tensor, values: Tensor, visible: Tensor, scaling: float
) -> Tensor:
    """Attend from q [N, Hq, D] to keys [C, Hk, D] and values [C, Hk, Dv]: [N, Hq, Dv]."""
    group = q.shape[1] // keys.shape[1]
    keys, values = (x.repeat_interleave(group, dim=1) for x in (keys, values))
    scores = torch.einsum("nhd,chd->hnc", q, keys) * scaling
    weights = scores.masked_fill(~visible, -torch.inf).softmax(-1).nan_to_num(0)
    return torch.einsum("hnc,chd->nhd", weights, values)
