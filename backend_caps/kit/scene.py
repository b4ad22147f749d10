"""A batch over a paged KV cache, whose slots without an owner hold poison.

Shapes: P rows in the request pool, L the longest context, S slots in the KV cache, B requests and
T tokens in the batch, Hq query heads, Hk key and value heads, D and Dv their sizes, N new tokens of
one request and C tokens of its context, M entries in a tree mask.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, fields, replace
from typing import TypeVar

import torch
from torch import Tensor

from backend_caps.runtime.attention import AttentionBackend
from backend_caps.runtime.batch import ForwardMode
from backend_caps.runtime.forward_batch import ForwardBatch
from backend_caps.runtime.model.layers import AttentionLayer

_Held = TypeVar("_Held", bound="Pools | Scene | ForwardBatch")
_HOST = frozenset({"seq_lens_cpu", "seq_lens_cpu_upper_bound"})

Requests = Sequence[tuple[int, int]]
"""Cached tokens and new tokens, for each request."""


@dataclass(frozen=True, slots=True)
class Pools:
    """The pools of a backend: the page table, and one layer of KV cache."""

    req_to_token: Tensor
    """[P, L] int32, device."""
    keys: Tensor
    """[S, Hk, D], device."""
    values: Tensor
    """[S, Hk, Dv], device."""
    page_size: int = 1
    """Slots that are allocated together."""
    layer: AttentionLayer | None = None
    """The only layer: an engine's adapter sizes buffers by it; backends get it in `forward`."""

    @property
    def req_to_token_pool(self) -> Pools:
        """Return itself, as the page table's pool."""
        return self

    @property
    def token_to_kv_pool(self) -> Pools:
        """Return itself, as the KV cache's pool."""
        return self

    def get_key_buffer(self, _layer_id: int, /) -> Tensor:
        """Return the only layer's keys."""
        return self.keys

    def get_value_buffer(self, _layer_id: int, /) -> Tensor:
        """Return the only layer's values."""
        return self.values

    def set_kv_buffer(self, _layer: object, loc: Tensor, k: Tensor, v: Tensor, /) -> None:
        """Store new tokens, in the cache's own dtype."""
        self.keys[loc] = k.to(self.keys.dtype)
        self.values[loc] = v.to(self.values.dtype)


@dataclass(frozen=True, kw_only=True)
class Scene:
    """A batch, its pools and its new tokens.

    `contexts` hold each request's keys and values in order; the pools hold the cached ones of
    them, scattered over random pages, and not yet the batch's new tokens.
    """

    pools: Pools
    layer: AttentionLayer
    batch: ForwardBatch
    q: Tensor
    """[T, Hq, D], device."""
    k: Tensor
    """[T, Hk, D], device."""
    v: Tensor
    """[T, Hk, Dv], device."""
    contexts: Sequence[tuple[Tensor, Tensor]]
    """[C, Hk, D] and [C, Hk, Dv], host: keys and values of each request."""
    visible: Sequence[Tensor]
    """[N, C] bool, host: the mask of each request's new tokens."""

    @property
    def requests(self) -> Requests:
        """Cached tokens and new tokens, for each request."""
        return [(mask.shape[1] - len(mask), len(mask)) for mask in self.visible]

    @property
    def counts(self) -> list[int]:
        """N, for each request."""
        return [len(mask) for mask in self.visible]

    def run(
        self, implementation: Callable[..., AttentionBackend], *, save_kv_cache: bool = True
    ) -> Tensor:
        """Run one layer's eager forward in a new backend: [T, Hq, Dv]."""
        return self.attend(implementation(self.pools), save_kv_cache=save_kv_cache)

    def attend(self, backend: AttentionBackend, *, save_kv_cache: bool = True) -> Tensor:
        """Prepare a backend and run its eager forward: [T, Hq, Dv]."""
        backend.init_forward_metadata(self.batch)
        return self.forward(backend, save_kv_cache=save_kv_cache)

    def forward(self, backend: AttentionBackend, *, save_kv_cache: bool = True) -> Tensor:
        """Run a prepared backend's forward: [T, Hq, Dv]."""
        q, k, v = (tokens.flatten(1) for tokens in (self.q, self.k, self.v))
        output = backend.forward(q, k, v, self.layer, self.batch, save_kv_cache=save_kv_cache)
        return output.reshape(len(output), self.layer.tp_q_head_num, self.layer.v_head_dim)

    def select(self, order: Sequence[int]) -> Scene:
        """Make the scene of some of the requests, in this order, over the same pools."""
        whole, visible = self.batch, [self.visible[i] for i in order]
        batch = batch_of(
            [self.requests[i] for i in order],
            whole.req_pool_indices[[*order]],
            self.take(whole.out_cache_loc, order),
            uniform=whole.extend_seq_lens is None,
        )
        batch.mode = whole.mode
        if whole.tree_mask is not None:
            batch.tree_mask = flat_mask(visible)
        q, k, v = (self.take(tokens, order) for tokens in (self.q, self.k, self.v))
        contexts = [self.contexts[i] for i in order]
        return replace(self, batch=batch, q=q, k=k, v=v, contexts=contexts, visible=visible)

    def take(self, tokens: Tensor, order: Sequence[int]) -> Tensor:
        """Select the tokens of some requests, in this order."""
        parts = torch.split(tokens, self.counts)
        return torch.cat([tokens[:0], *(parts[i] for i in order)])

    def on(self, device: torch.device | str) -> Scene:
        """Move the device tensors to a device; host tensors stay."""
        return moved(self, lambda tensor: tensor.to(device))


def moved(held: _Held, move: Callable[[Tensor], Tensor]) -> _Held:
    """Copy pools, a scene or a batch, and apply `move` to each device tensor."""
    copied = copy(held)
    for each in fields(held):
        value = getattr(held, each.name)
        # `object.__setattr__` sets fields of frozen dataclasses.
        if isinstance(value, Tensor) and each.name not in _HOST:
            object.__setattr__(copied, each.name, move(value))
        elif isinstance(value, Pools | ForwardBatch):
            object.__setattr__(copied, each.name, moved(value, move))
    return copied


def batch_of(requests: Requests, rows: Tensor, new_slots: Tensor, *, uniform: bool) -> ForwardBatch:
    """Make the batch of requests in `rows`, [B], that writes to `new_slots`, [T]."""
    prefixes, counts = [old for old, _ in requests], [new for _, new in requests]
    lengths = torch.tensor([sum(request) for request in requests], dtype=torch.int64)
    positions = [torch.arange(old, old + new) for old, new in requests]
    is_decode = uniform and len(new_slots) == len(requests)
    uniform_mode = ForwardMode.DECODE if is_decode else ForwardMode.VERIFY
    batch = ForwardBatch(
        mode=uniform_mode if uniform else ForwardMode.EXTEND,
        input_ids=torch.zeros_like(new_slots),
        positions=torch.cat([new_slots[:0], *positions]),
        req_pool_indices=rows,
        seq_lens=lengths,
        out_cache_loc=new_slots,
        seq_lens_cpu=lengths.clone(),
        seq_lens_sum=int(lengths.sum()),
    )
    if not uniform:
        batch.extend_seq_lens = torch.tensor(counts, dtype=torch.int64)
        batch.extend_prefix_lens = torch.tensor(prefixes, dtype=torch.int64)
        batch.extend_seq_lens_cpu, batch.extend_prefix_lens_cpu = tuple(counts), tuple(prefixes)
    return batch


def flat_mask(visible: Sequence[Tensor], num_spare: int = 0) -> Tensor:
    """Flatten masks of requests to a tree mask: [M] bool, with true spare entries at its end."""
    spare = torch.ones(num_spare, dtype=torch.bool)
    return torch.cat([*(rows.flatten() for rows in visible), spare])


def reference_attention(scene: Scene) -> Tensor:
    """Compute a scene's attention in float64, from `contexts` and `visible` alone.

    It reads neither the KV cache, the page table nor the batch, which a backend reads.

    returns  [T, Hq, Dv] float64, host; zeros for a token that sees nothing
    """
    queries = torch.split(scene.q.cpu().double(), scene.counts)
    outputs = [
        _one_request(q, keys.double(), values.double(), visible, scene.layer.scaling)
        for q, (keys, values), visible in zip(queries, scene.contexts, scene.visible, strict=True)
    ]
    width = scene.layer.tp_q_head_num, scene.layer.v_head_dim
    return torch.cat([torch.empty(0, *width, dtype=torch.float64), *outputs])


def _one_request(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scaling: float) -> Tensor:
    """Attend from q [N, Hq, D] to keys [C, Hk, D] and values [C, Hk, Dv]: [N, Hq, Dv]."""
    group = q.shape[1] // keys.shape[1]
    keys, values = (x.repeat_interleave(group, dim=1) for x in (keys, values))
    scores = torch.einsum("nhd,chd->hnc", q, keys) * scaling
    weights = scores.masked_fill(~mask, -torch.inf).softmax(-1).nan_to_num(0)
    return torch.einsum("hnc,chd->nhd", weights, values)
