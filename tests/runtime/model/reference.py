"""Attention as it is written on paper, over a cache whose slots are scattered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from backend_caps.runtime.model.draft import DraftModel
from backend_caps.runtime.model.layers import AttentionLayer, Decoder
from backend_caps.runtime.model.llama import LlamaModel

NUM_SLOTS = 512


class Cache:
    """Keys and values of every slot; a slot that nobody wrote is NaN."""

    def __init__(self, model: Decoder) -> None:
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


def stretches_of(
    cache: Cache, tokens: Sequence[Sequence[int]], starts: Sequence[int]
) -> tuple[Tensor, Tensor, Reference]:
    """Give each request slots for its stretch, from a position on; return ids, positions, context.

    ids        [T] int64, device
    positions  [T] int64, device
    """
    stretches = [Stretch(cache.grow(place, len(own)), len(own)) for place, own in enumerate(tokens)]
    ids = [token for own in tokens for token in own]
    places = [start + i for own, start in zip(tokens, starts, strict=True) for i in range(len(own))]
    numbers = torch.tensor([ids, places], device=cache.keys.device)
    return numbers[0], numbers[1], Reference(cache, stretches)


def run(
    model: LlamaModel,
    cache: Cache,
    tokens: Sequence[Sequence[int]],
    starts: Sequence[int],
    last_token_indices: Tensor | None = None,
) -> Tensor:
    """Forward a stretch of each request, from a position on."""
    return model(*stretches_of(cache, tokens, starts), last_token_indices)


def run_head(
    head: DraftModel,
    cache: Cache,
    tokens: Sequence[Sequence[int]],
    hidden: Tensor,
    starts: Sequence[int],
) -> Tensor:
    """Continue a stretch of each request by a draft model, from a position on."""
    ids, positions, context = stretches_of(cache, tokens, starts)
    return head.hidden_states(ids, positions, hidden, context)
