"""What engines' layers have beside plain attention, with its definition.

Shapes: T tokens in a batch, N new tokens of one request, C tokens of its context, Hq query heads,
Hk key and value heads, D and Dv their sizes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from backend_caps.kit.scene import Scene


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerVariant:
    """A kind of layer."""

    num_before: int | None = None
    """How many tokens before itself a token sees, by a sliding window; None: all."""
    logit_cap: float | None = None
    """The bound of scores, which the hyperbolic tangent keeps; None: there is none."""
    has_sinks: bool = False
    """Whether each head has a score that takes weight and gives no value."""
    is_encoder: bool = False
    """Whether each token of a prompt sees all of them."""

    def sinks(self, num_heads: int) -> Tensor | None:
        """Return the scores of the sinks: [Hq] float32, host; None where there are none."""
        return torch.linspace(-1.0, 2.0, num_heads) if self.has_sinks else None

    def visible(self, mask: Tensor) -> Tensor:
        """Return which tokens of a context are seen, of those that a plain layer's see.

        mask     [N, C] bool, host
        returns  [N, C] bool, host
        """
        if self.is_encoder:
            return torch.ones_like(mask)
        count, length = mask.shape
        return mask if self.num_before is None else mask.triu(length - count - self.num_before)

    def expected(self, scene: Scene) -> Tensor:
        """Attend by the definition: [T, Hq, Dv] float64, host."""
        parts = torch.split(scene.q.cpu().double(), scene.counts)
        requests = zip(parts, scene.contexts, scene.visible, strict=True)
        outputs = [
            self._one_request(q * scene.layer.scaling, keys.double(), values.double(), visible)
            for q, (keys, values), visible in requests
        ]
        return torch.cat(outputs)

    def _one_request(self, q: Tensor, keys: Tensor, values: Tensor, visible: Tensor) -> Tensor:
        """Attend from q [N, Hq, D] to keys [C, Hk, D] and values [C, Hk, Dv]: [N, Hq, Dv]."""
        group = q.shape[1] // keys.shape[1]
        keys, values = (each.repeat_interleave(group, dim=1) for each in (keys, values))
        scores = torch.einsum("nhd,chd->hnc", q, keys)
        if self.logit_cap is not None:
            scores = self.logit_cap * torch.tanh(scores / self.logit_cap)
        scores = scores.masked_fill(~self.visible(visible), -torch.inf)
        sinks = self.sinks(q.shape[1])
        if sinks is not None:
            column = sinks.double()[:, None, None].expand(-1, scores.shape[1], 1)
            scores = torch.cat([scores, column], dim=2)
        weights = scores.softmax(-1)[:, :, : len(keys)].nan_to_num(0)
        return torch.einsum("hnc,chd->nhd", weights, values)


PLAIN = LayerVariant()
"""A layer without any of it."""
