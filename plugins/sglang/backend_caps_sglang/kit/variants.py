"""What SGLang's layers have beside plain attention, with its definition, and configurations.

Shapes: B requests and T tokens in a batch, N new tokens of one request, C tokens of its context, Hq
query heads, Hk key and value heads, D and Dv their sizes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from backend_caps.kit.scenes import Scene

CACHE_DTYPE = torch.float8_e4m3fn
"""Of a cache with scales."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerVariant:
    """A kind of layer, and a server's configuration."""

    window: int | None = None
    """How many tokens before itself a token sees; None: all."""
    logit_cap: float = 0.0
    """The bound of scores, which the hyperbolic tangent keeps; 0: none."""
    has_sinks: bool = False
    """Whether each head has a score that takes weight and gives no value."""
    is_encoder: bool = False
    """Whether each token of a prompt sees all of them."""
    kv_scales: tuple[float, float] | None = None
    """What keys and values in a cache of float8 are divided by: powers of two; None: no scales."""
    configuration: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    """What differs from a plain server's, by the part of SGLang's execution settings."""

    def prepared(self, drawn: Scene) -> Scene:
        """Return a drawn scene as layers of the variant have it: the cache, and exact contexts.

        Queries, keys and values become such that float8 holds them exactly.
        """
        if self.kv_scales is None:
            return drawn
        of_keys, of_values = (partial(_exact, scale=scale) for scale in self.kv_scales)
        pools = drawn.pools
        keys, values = (
            (own.float() / scale).to(CACHE_DTYPE)
            for own, scale in zip((pools.keys, pools.values), self.kv_scales, strict=True)
        )
        return replace(
            drawn,
            pools=replace(pools, keys=keys, values=values),
            q=_exact(drawn.q, 1.0),
            k=of_keys(drawn.k),
            v=of_values(drawn.v),
            contexts=[(of_keys(k), of_values(v)) for k, v in drawn.contexts],
        )

    def sinks(self, num_heads: int) -> Tensor | None:
        """Return the scores of the sinks: [Hq] float32, host; None where there are none."""
        return torch.linspace(-1.0, 2.0, num_heads) if self.has_sinks else None

    def expected(self, scene: Scene) -> Tensor:
        """Attend by the definition: [T, Hq, Dv] float64, host."""
        parts = torch.split(scene.q.cpu().double(), scene.counts)
        rows = zip(parts, scene.contexts, scene.visible, strict=True)
        scaling = scene.layer.scaling
        outputs = [
            self._attended(q * scaling, keys.double(), values.double(), visible)
            for q, (keys, values), visible in rows
        ]
        return torch.cat(outputs)

    def _attended(self, q: Tensor, keys: Tensor, values: Tensor, visible: Tensor) -> Tensor:
        """Attend from q [N, Hq, D] to keys [C, Hk, D] and values [C, Hk, Dv]: [N, Hq, Dv]."""
        group = q.shape[1] // keys.shape[1]
        keys, values = (each.repeat_interleave(group, dim=1) for each in (keys, values))
        scores = torch.einsum("nhd,chd->hnc", q, keys)
        if self.logit_cap:
            scores = self.logit_cap * torch.tanh(scores / self.logit_cap)
        scores = scores.masked_fill(~self.visible(visible), -torch.inf)
        sinks = self.sinks(q.shape[1])
        if sinks is not None:
            column = sinks.double()[:, None, None].expand(-1, scores.shape[1], 1)
            scores = torch.cat([scores, column], dim=2)
        weights = scores.softmax(-1)[:, :, : len(keys)]
        return torch.einsum("hnc,chd->nhd", weights, values)

    def visible(self, mask: Tensor) -> Tensor:
        """Return which tokens of a context are seen, of those that a plain layer's see.

        mask     [N, C] bool, host
        returns  [N, C] bool, host
        """
        if self.is_encoder:
            return torch.ones_like(mask)
        count, length = mask.shape
        return mask if self.window is None else mask.triu(length - count - self.window)


def _exact(own: Tensor, scale: float) -> Tensor:
    """Round to what float8 holds of a scaled number."""
    return ((own.float() / scale).to(CACHE_DTYPE).float() * scale).to(own.dtype)


PLAIN = LayerVariant()
"""A layer without any of it, of a plain server."""
