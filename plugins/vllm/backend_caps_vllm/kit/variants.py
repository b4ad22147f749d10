"""What vLLM's layers have beside plain attention, with its definition.

Shapes: T tokens in a batch, N new tokens of one request, C tokens of its context, Hq query heads,
Hk key and value heads, D and Dv their sizes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from backend_caps.kit.scenes import Scene


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerVariant:
    """A kind of layer."""

    window: int | None = None
    """How many tokens a token sees, itself included; None: all."""
    logit_cap: float | None = None
    """The bound of scores, which the hyperbolic tangent keeps; None: there is none."""
    has_sinks: bool = False
    """Whether each head has a score that takes weight and gives no value."""

    def arguments(self, num_heads: int, device: torch.device) -> dict[str, object]:
        """Return the arguments of an implementation that plain layers do not give."""
        given: dict[str, object] = {}
        if self.logit_cap is not None:
            given["logits_soft_cap"] = self.logit_cap
        if self.has_sinks:
            given["sinks"] = self.sinks(num_heads).to(device)
        return given

    def sinks(self, num_heads: int) -> Tensor:
        """Return the scores of the sinks: [Hq] float32, host."""
        return torch.linspace(-1.0, 2.0, num_heads)

    def expected(self, scene: Scene) -> Tensor:
        """Attend by the definition: [T, Hq, Dv] float64, host."""
        parts = torch.split(scene.q.cpu().double(), scene.counts)
        rows = zip(parts, scene.contexts, scene.visible, strict=True)
        return torch.cat(
            [
                self._one_request(q, keys.double(), values.double(), visible, scene.layer.scaling)
                for q, (keys, values), visible in rows
            ]
        )

    def _one_request(
        self, q: Tensor, keys: Tensor, values: Tensor, visible: Tensor, scaling: float
    ) -> Tensor:
        """Attend from q [N, Hq, D] to keys [C, Hk, D] and values [C, Hk, Dv]: [N, Hq, Dv]."""
        count, num_heads = q.shape[:2]
        group = num_heads // keys.shape[1]
        keys, values = (own.repeat_interleave(group, dim=1) for own in (keys, values))
        scores = torch.einsum("nhd,chd->hnc", q, keys) * scaling
        if self.logit_cap is not None:
            scores = self.logit_cap * torch.tanh(scores / self.logit_cap)
        if self.window is not None:
            visible = visible.triu(len(keys) - count - self.window + 1)
        scores = scores.masked_fill(~visible, -torch.inf)
        if self.has_sinks:
            sinks = self.sinks(num_heads).double()[:, None, None].expand(-1, count, 1)
            scores = torch.cat([scores, sinks], dim=-1)
        weights = scores.softmax(-1)[..., : len(keys)]
        return torch.einsum("hnc,chd->nhd", weights, values)


PLAIN = LayerVariant()
"""A layer without any of it."""
