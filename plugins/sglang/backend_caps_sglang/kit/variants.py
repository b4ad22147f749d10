"""Variants of SGLang's layers, with their caches and configurations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from backend_caps.kit.layer_variants import LayerVariant
from backend_caps.kit.scenes import Scene

CACHE_DTYPE = torch.float8_e4m3fn
"""Of a cache with scales."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedVariant(LayerVariant):
    """A kind of layer, its cache, and a server's configuration."""

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


def _exact(own: Tensor, scale: float) -> Tensor:
    """Round to what float8 holds of a scaled number."""
    return ((own.float() / scale).to(CACHE_DTYPE).float() * scale).to(own.dtype)


PLAIN = ServedVariant()
"""A layer without any of it, of a plain server."""
