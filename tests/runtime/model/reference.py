"""Attention as it is written on paper, over a cache whose slots are scattered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from backend_caps.runtime.model.layers import AttentionLayer
from backend_caps.runtime.model.llama import LlamaModel

NUM_SLOTS = 512


class Cache:
    """Keys and values of every slot; a slot that nobody wrote is NaN."""

    def __init__(self, model: LlamaModel) -> None:
        config = model.config
        shape = (config.num_hidden_layers, NUM_SLOTS, config.num_key_value_heads, config.head_dim)
        self.keys = torch.full(shape, torch.nan, dtype=model.dtype, device=model.device)
        self.values = torch.full_like(self.keys, torch.nan)
        self._free = torch.randperm(NUM_SLOTS, generator=torch.Generator().manual_seed(0)).tolist()
        self._slots: dict[int, list[int]] = {}

    def grow(self, request: int, count: int) -> list[int]:
        """Give a request so many more slots, and return all that it has."""
        slots = self._slots.setdefault(request, [])
        slots.extend(self._free.pop() for _ in range(count))
        return list(slots)


@dataclass(frozen=True)
class Stretch:
    """A request's tokens of one forward."""

    slots: list[int]
    """Its whole context, these tokens included."""
    count: int


@dataclass(frozen=True)
class Reference:
    """One forward's context: each request brings a stretch of tokens."""

    cache: Cache
    stretches: Sequence[Stretch]

    def attend(self, layer: AttentionLayer, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Store keys and values, then attend, one request after the other."""
        counts = [stretch.count for stretch in self.stretches]
        parts = zip(self.stretches, *(torch.split(each, counts) for each in (q, k, v)), strict=True)
        return torch.cat([q[:0], *(self._one(layer, *part) for part in parts)])

    def _one(self, layer: AttentionLayer, own: Stretch, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = self.cache.keys[layer.layer_id], self.cache.values[layer.layer_id]
        new = own.slots[-own.count :]
        keys[new] = k.view(own.count, layer.tp_k_head_num, layer.qk_head_dim)
        values[new] = v.view(own.count, layer.tp_k_head_num, layer.v_head_dim)
        sharing = layer.tp_q_head_num // layer.tp_k_head_num
        all_keys = keys[own.slots].repeat_interleave(sharing, dim=1)
        all_values = values[own.slots].repeat_interleave(sharing, dim=1)
        heads = q.view(own.count, layer.tp_q_head_num, layer.qk_head_dim)
        scores = torch.einsum("thd,shd->hts", heads, all_keys) * layer.scaling
        seen = torch.ones_like(scores[0]).tril(len(own.slots) - own.count).bool()
        weights = scores.masked_fill(~seen, -torch.inf).softmax(dim=-1)
        return torch.einsum("hts,shd->thd", weights, all_values).flatten(1)


def run(
    model: LlamaModel,
    cache: Cache,
    tokens: Sequence[Sequence[int]],
    starts: Sequence[int],
    last_token_indices: Tensor | None = None,
) -> Tensor:
    """Forward a stretch of each request, from a position on."""
    stretches = [
        Stretch(cache.grow(request, len(own)), len(own)) for request, own in enumerate(tokens)
    ]
    ids = torch.tensor([token for own in tokens for token in own], device=model.device)
    places = [start + i for own, start in zip(tokens, starts, strict=True) for i in range(len(own))]
    positions = torch.tensor(places, device=model.device)
    return model(ids, positions, Reference(cache, stretches), last_token_indices)
