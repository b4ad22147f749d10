"""Attention as it is defined: one query and one head at a time, in double precision."""

from __future__ import annotations

from torch import Tensor, stack

from .rig import Scene


def expected(scene: Scene) -> Tensor:
    """Attend from every new token of a scene to what it sees: [T, Hq, Dv] float64."""
    queries = iter(scene.q.double())
    outputs = [
        _one_token(next(queries), keys[seen], values[seen], scene.heads.scaling)
        for (keys, values), visible in zip(scene.contexts, scene.visible, strict=True)
        for seen in visible
    ]
    return stack(outputs)


def _one_token(query: Tensor, keys: Tensor, values: Tensor, scaling: float) -> Tensor:
    group = len(query) // keys.shape[1]
    heads = []
    for head, q in enumerate(query):
        k, v = keys[:, head // group].double(), values[:, head // group].double()
        weights = (k @ q * scaling).exp()
        heads.append((weights[:, None] * v).sum(0) / weights.sum())
    return stack(heads)
