"""What engines' layers have beside plain attention, with its definition.

Shapes: Y layers, T tokens in a batch, N new tokens of one request, C tokens of its context, Hq
query heads, Hk key and value heads, D and Dv their sizes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from backend_caps.kit.scenarios import Scenario
from backend_caps.kit.scene import Scene

CACHE_DTYPE = torch.float8_e4m3fn
"""Of a cache with scales."""
FLOAT8_TOLERANCE = 0.12
"""Absolute and relative: weights of cached values are rounded to float8, by a sixteenth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerVariant:
    """A kind of layer."""

    num_before: int | None = None
    """How many tokens before itself a token sees, by a sliding window; None: all."""
    is_mixed: bool = False
    """Whether layers with odd ids have no window."""
    logit_cap: float | None = None
    """The bound of scores, which the hyperbolic tangent keeps; None: there is none."""
    has_sinks: bool = False
    """Whether each head has a score that takes weight and gives no value."""
    is_encoder: bool = False
    """Whether each token of a prompt sees all of them."""
    kv_scales: tuple[float, float] | None = None
    """What keys and values in a cache of float8 are divided by, in layers with even ids, and by
    twice as much in others: powers of two; None: no scales."""

    is_latent: bool = False
    """Whether values are the first features of keys, as in the cache of latent attention."""

    def scales_of(self, layer_id: int) -> tuple[float, float] | None:
        """Return what a layer's keys and values are divided by in the cache."""
        if self.kv_scales is None:
            return None
        of_keys, of_values = self.kv_scales
        factor = 1 + layer_id % 2
        return factor * of_keys, factor * of_values

    def prepared(self, drawn: Scene) -> Scene:
        """Return a drawn scene as layers of the variant have it: the cache, and exact contexts.

        Queries, keys and values become such that float8 holds them exactly. Values of a latent
        become those of its keys.
        """
        if self.is_latent:
            return _latent(drawn)
        if self.kv_scales is None:
            return drawn
        pools = drawn.pools
        keys, values = (
            torch.stack([_stored(own, scales[part]) for own, scales in self._with_scales(buffers)])
            for part, buffers in enumerate((pools.key_buffers, pools.value_buffers))
        )
        return replace(
            drawn,
            pools=replace(pools, key_buffers=keys, value_buffers=values),
            q=_exact(drawn.q, 1.0),
            k=self._all_exact(drawn, drawn.k, 0),
            v=self._all_exact(drawn, drawn.v, 1),
            contexts=[
                (self._all_exact(drawn, keys, 0), self._all_exact(drawn, values, 1))
                for keys, values in drawn.contexts
            ],
        )

    def _with_scales(self, buffers: Tensor) -> Iterator[tuple[Tensor, tuple[float, float]]]:
        for layer_id, own in enumerate(buffers):
            scales = self.scales_of(layer_id)
            assert scales is not None, "only a cache with scales is prepared"
            yield own, scales

    def _all_exact(self, drawn: Scene, tokens: Tensor, part: int) -> Tensor:
        """Round all layers' keys (0) or values (1), [T, Y * Hk, D], to what the cache holds."""
        parts = tokens.chunk(len(drawn.layers), 1)
        scales = [self.scales_of(layer.layer_id) for layer in drawn.layers]
        rounded = [
            own if each is None else _exact(own, each[part])
            for own, each in zip(parts, scales, strict=True)
        ]
        return torch.cat(rounded, 1)

    def sinks(self, num_heads: int) -> Tensor | None:
        """Return the scores of the sinks: [Hq] float32, host; None where there are none."""
        return torch.linspace(-1.0, 2.0, num_heads) if self.has_sinks else None

    def window_of(self, layer_id: int) -> int | None:
        """Return a layer's window, in tokens before itself; None where it has none."""
        return None if self.is_mixed and layer_id % 2 else self.num_before

    def visible(self, mask: Tensor, layer_id: int = 0) -> Tensor:
        """Return which tokens of a context a layer sees, of those that a plain layer's see.

        mask     [N, C] bool, host
        returns  [N, C] bool, host
        """
        if self.is_encoder:
            return torch.ones_like(mask)
        window, (count, length) = self.window_of(layer_id), mask.shape
        return mask if window is None else mask.triu(length - count - window)

    def expected(self, scene: Scene) -> Tensor:
        """Attend by the definition: [T, Y * Hq, Dv] float64, host."""
        parts = torch.split(scene.q.cpu().double(), scene.counts)
        requests = zip(parts, scene.contexts, scene.visible, strict=True)
        return torch.cat([torch.cat(self._of_layers(scene, *each), 1) for each in requests])

    def _of_layers(
        self, scene: Scene, q: Tensor, context: tuple[Tensor, Tensor], visible: Tensor
    ) -> list[Tensor]:
        """Attend in each layer: [N, Hq, Dv] each."""
        parts = (own.double().chunk(len(scene.layers), 1) for own in (q, *context))
        return [
            self._one_request(q * layer.scaling, k, v, self.visible(visible, layer.layer_id))
            for layer, q, k, v in zip(scene.layers, *parts, strict=True)
        ]

    def _one_request(self, q: Tensor, keys: Tensor, values: Tensor, visible: Tensor) -> Tensor:
        """Attend from q [N, Hq, D] to keys [C, Hk, D] and values [C, Hk, Dv]: [N, Hq, Dv]."""
        group = q.shape[1] // keys.shape[1]
        keys, values = (each.repeat_interleave(group, dim=1) for each in (keys, values))
        scores = torch.einsum("nhd,chd->hnc", q, keys)
        if self.logit_cap is not None:
            scores = self.logit_cap * torch.tanh(scores / self.logit_cap)
        scores = scores.masked_fill(~visible, -torch.inf)
        sinks = self.sinks(q.shape[1])
        if sinks is not None:
            column = sinks.double()[:, None, None].expand(-1, scores.shape[1], 1)
            scores = torch.cat([scores, column], dim=2)
        weights = scores.softmax(-1)[:, :, : len(keys)].nan_to_num(0)
        return torch.einsum("hnc,chd->nhd", weights, values)


def float8_scenario(scenario: Scenario) -> Scenario:
    """Return a scenario of two layers, whose numbers and sizes kernels over float8 take."""
    # Products of float8 take 32 numbers at least.
    size = max(64, scenario.head_size)
    return replace(scenario, dtype="bfloat16", head_size=size, layer_ids=(0, 1))


def _latent(drawn: Scene) -> Scene:
    """Take the values of a scene, of one KV head in each layer, from its keys."""
    pools, size = drawn.pools, drawn.v.shape[-1]
    return replace(
        drawn,
        pools=replace(pools, value_buffers=pools.key_buffers[..., :size].clone()),
        v=drawn.k[..., :size].clone(),
        contexts=[(keys, keys[..., :size]) for keys, _ in drawn.contexts],
    )


def latent_scenario(scenario: Scenario) -> Scenario:
    """Return a scenario of the sizes that DeepSeek's models have: 512 features, 64 rotated."""
    return replace(scenario, head_size=576, num_heads=16, num_kv_heads=1)


def _stored(own: Tensor, scale: float) -> Tensor:
    """Divide by a scale and round to float8, as a cache stores it."""
    return (own.float() / scale).to(CACHE_DTYPE)


def _exact(own: Tensor, scale: float) -> Tensor:
    """Round to what float8 holds of a scaled number."""
    return (_stored(own, scale).float() * scale).to(own.dtype)


PLAIN = LayerVariant()
"""A layer without any of it."""
