"""A batch over a paged KV cache, whose slots without an owner hold poison.

A scene runs one layer or several, of the same sizes, each with its own queries, keys and values.
Tensors of all layers have their heads side by side, layer after layer.

Shapes: P rows in the request pool, L the longest context, A layers in the KV cache and Y of them
that run, S slots in a layer, B requests and T tokens in the batch, Hq query heads, Hk key and value
heads, D and Dv their sizes, N new tokens of one request and C tokens of its context, M entries in a
tree mask.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, fields, replace
from enum import Enum
from typing import TypeVar

import torch
from torch import Tensor

from backend_caps.protocols import Layer
from backend_caps.runtime.attention import AttentionBackend
from backend_caps.runtime.batch import ForwardMode
from backend_caps.runtime.forward_batch import ForwardBatch
from backend_caps.runtime.model.layers import AttentionLayer

_Held = TypeVar("_Held", bound="Pools | Scene | ForwardBatch")
_HOST = frozenset({"seq_lens_cpu", "seq_lens_cpu_upper_bound"})

_VOCABULARY = 50
"""Ids of tokens; what they are says nothing to a backend."""
Requests = Sequence[tuple[int, int]]
"""Cached tokens and new tokens, for each request."""


class Layout(Enum):
    """How a forward's queries, keys and values stand in memory."""

    PACKED = "packed"
    """As views of one tensor, as a fused projection leaves them."""
    SEPARATE = "separate"
    """In a tensor each, without gaps."""


@dataclass(frozen=True, slots=True)
class Pools:
    """The pools of a backend: the page table, and the KV cache of all layers."""

    req_to_token: Tensor
    """[P, L] int32 or int64, device."""
    key_buffers: Tensor
    """[A, S, Hk, D], device."""
    value_buffers: Tensor
    """[A, S, Hk, Dv], device."""
    page_size: int = 1
    """Slots that are allocated together."""
    layers: tuple[AttentionLayer, ...] = ()
    """The layers that run, whose ids are places in the buffers. Other layers hold poison alone."""

    @property
    def layer(self) -> AttentionLayer | None:
        """The first layer that runs: an engine's adapter sizes buffers by it."""
        return self.layers[0] if self.layers else None

    @property
    def keys(self) -> Tensor:
        """The first running layer's keys: [S, Hk, D], device."""
        return self.key_buffers[self.layers[0].layer_id if self.layers else 0]

    @property
    def values(self) -> Tensor:
        """The first running layer's values: [S, Hk, Dv], device."""
        return self.value_buffers[self.layers[0].layer_id if self.layers else 0]

    @property
    def req_to_token_pool(self) -> Pools:
        """Return itself, as the page table's pool."""
        return self

    @property
    def token_to_kv_pool(self) -> Pools:
        """Return itself, as the KV cache's pool."""
        return self

    def get_key_buffer(self, layer_id: int, /) -> Tensor:
        """Return a layer's keys: [S, Hk, D], device."""
        return self.key_buffers[layer_id]

    def get_value_buffer(self, layer_id: int, /) -> Tensor:
        """Return a layer's values: [S, Hk, Dv], device."""
        return self.value_buffers[layer_id]

    def set_kv_buffer(self, layer: Layer, loc: Tensor, k: Tensor, v: Tensor, /) -> None:
        """Store a layer's new tokens, in the cache's own dtype."""
        keys, values = self.key_buffers[layer.layer_id], self.value_buffers[layer.layer_id]
        keys[loc] = k.to(keys.dtype)
        values[loc] = v.to(values.dtype)

    def store(self, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Store tokens of all layers that run: [N], [N, Y * Hk, D] and [N, Y * Hk, Dv]."""
        parts = (own.chunk(len(self.layers), 1) for own in (keys, values))
        for layer, k, v in zip(self.layers, *parts, strict=True):
            self.set_kv_buffer(layer, slots, k, v)

    def tokens(self, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Copy keys [N, Y * Hk, D] and values [N, Y * Hk, Dv] of all layers that run."""
        ids = [layer.layer_id for layer in self.layers]
        keys, values = (
            torch.cat([buffers[place][slots] for place in ids], 1)
            for buffers in (self.key_buffers, self.value_buffers)
        )
        return keys, values

    def fill(self, slots: Tensor, value: float) -> None:
        """Fill slots of every layer."""
        self.key_buffers[:, slots] = self.value_buffers[:, slots] = value

    def copy_from(self, other: Pools) -> None:
        """Take the contents of pools of the same sizes. Sync: none. Allocates: nothing."""
        self.req_to_token.copy_(other.req_to_token)
        self.key_buffers.copy_(other.key_buffers)
        self.value_buffers.copy_(other.value_buffers)


@dataclass(frozen=True, kw_only=True)
class Scene:
    """A batch, its pools and its new tokens.

    `contexts` hold each request's keys and values in order; the pools hold the cached ones of
    them, scattered over random pages, and not yet the batch's new tokens.
    """

    pools: Pools
    layers: tuple[AttentionLayer, ...]
    """The layers that run, in their order."""
    batch: ForwardBatch
    q: Tensor
    """[T, Y * Hq, D], device."""
    k: Tensor
    """[T, Y * Hk, D], device."""
    v: Tensor
    """[T, Y * Hk, Dv], device."""
    contexts: Sequence[tuple[Tensor, Tensor]]
    """[C, Y * Hk, D] and [C, Y * Hk, Dv], host: keys and values of each request."""
    visible: Sequence[Tensor]
    """[N, C] bool, host: the mask of each request's new tokens."""
    layout: Layout = Layout.SEPARATE
    """How the layers get `q`, `k` and `v`."""

    @property
    def layer(self) -> AttentionLayer:
        """The first layer that runs."""
        return self.layers[0]

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
        """Run an eager forward of all layers in a new backend: [T, Y * Hq, Dv]."""
        return self.attend(implementation(self.pools), save_kv_cache=save_kv_cache)

    def attend(self, backend: AttentionBackend, *, save_kv_cache: bool = True) -> Tensor:
        """Prepare a backend and run its eager forward of all layers: [T, Y * Hq, Dv]."""
        backend.init_forward_metadata(self.batch)
        return self.forward(backend, save_kv_cache=save_kv_cache)

    def forward(self, backend: AttentionBackend, *, save_kv_cache: bool = True) -> Tensor:
        """Run a prepared backend's forward of each layer in turn: [T, Y * Hq, Dv]."""
        outputs = []
        for layer, (q, k, v) in zip(self.layers, self.inputs(), strict=True):
            output = backend.forward(q, k, v, layer, self.batch, save_kv_cache=save_kv_cache)
            outputs.append(output.reshape(len(output), layer.tp_q_head_num, layer.v_head_dim))
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, 1)

    def inputs(self) -> Sequence[tuple[Tensor, Tensor, Tensor]]:
        """Return each layer's queries [T, Hq * D], keys [T, Hk * D] and values [T, Hk * Dv].

        They are views of `q`, `k` and `v`, or copies where these hold several layers and their
        layout is `SEPARATE`.
        """
        return layer_inputs(self.q, self.k, self.v, len(self.layers), self.layout)

    def laid_out(self) -> Scene:
        """Place `q`, `k` and `v` in memory as the scene's layout has them."""
        if self.layout is Layout.SEPARATE:
            return self
        q, k, v = packed(self.q, self.k, self.v)
        return replace(self, q=q, k=k, v=v)

    def select(self, order: Sequence[int]) -> Scene:
        """Make the scene of some of the requests, in this order, over the same pools."""
        whole, visible = self.batch, [self.visible[i] for i in order]
        batch = batch_of(
            [self.requests[i] for i in order],
            whole.req_pool_indices[[*order]],
            self.take(whole.out_cache_loc, order),
            uniform=whole.extend_seq_lens is None,
            extend_dtype=extend_dtype_of(whole),
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


def packed(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Copy tensors [T, ...] side by side to one tensor, and return views of their shapes."""
    parts = (q, k, v)
    sizes = [own[0].numel() if len(own) else own.shape[1] * own.shape[2] for own in parts]
    whole = torch.cat([own.flatten(1) for own in parts], 1)
    views = zip(parts, torch.split(whole, sizes, 1), strict=True)
    q, k, v = (view.view(own.shape) for own, view in views)
    return q, k, v


def layer_inputs(
    q: Tensor, k: Tensor, v: Tensor, num_layers: int, layout: Layout
) -> Sequence[tuple[Tensor, Tensor, Tensor]]:
    """Cut [T, Y * H, D] into each layer's [T, H * D], as views unless the layout is `SEPARATE`."""
    parts = [[own.flatten(1) for own in tokens.chunk(num_layers, 1)] for tokens in (q, k, v)]
    if layout is Layout.SEPARATE:
        parts = [[own.contiguous() for own in of_layers] for of_layers in parts]
    return [*zip(*parts, strict=True)]


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
    if isinstance(copied, Scene) and copied.layout is Layout.PACKED:
        for name, view in zip("qkv", packed(copied.q, copied.k, copied.v), strict=True):
            object.__setattr__(copied, name, view)
    return copied


def batch_of(
    requests: Requests,
    rows: Tensor,
    new_slots: Tensor,
    *,
    uniform: bool,
    extend_dtype: torch.dtype = torch.int64,
) -> ForwardBatch:
    """Make the batch of requests in `rows`, [B], that writes to `new_slots`, [T]."""
    prefixes, counts = [old for old, _ in requests], [new for _, new in requests]
    lengths = torch.tensor([sum(request) for request in requests], dtype=torch.int64)
    positions = [torch.arange(old, old + new) for old, new in requests]
    is_decode = uniform and len(new_slots) == len(requests)
    uniform_mode = ForwardMode.DECODE if is_decode else ForwardMode.VERIFY
    batch = ForwardBatch(
        mode=uniform_mode if uniform else ForwardMode.EXTEND,
        input_ids=new_slots % _VOCABULARY + 1,
        positions=torch.cat([new_slots[:0], *positions]),
        req_pool_indices=rows,
        seq_lens=lengths,
        out_cache_loc=new_slots,
        seq_lens_cpu=lengths.clone(),
        seq_lens_sum=int(lengths.sum()),
    )
    if not uniform:
        batch.last_token_indices = torch.tensor(counts).cumsum(0) - 1
        batch.extend_seq_lens = torch.tensor(counts, dtype=extend_dtype)
        batch.extend_prefix_lens = torch.tensor(prefixes, dtype=extend_dtype)
        batch.extend_seq_lens_cpu, batch.extend_prefix_lens_cpu = tuple(counts), tuple(prefixes)
    return batch


def extend_dtype_of(batch: ForwardBatch) -> torch.dtype:
    """Return the dtype of a batch's extend lengths; int64 where it has none."""
    return torch.int64 if batch.extend_seq_lens is None else batch.extend_seq_lens.dtype


def causal(count: int, length: int) -> Tensor:
    """Return the causal mask of a context's last tokens: [count, length] bool."""
    return torch.ones(count, length, dtype=torch.bool).tril(length - count)


def flat_mask(visible: Sequence[Tensor], num_spare: int = 0) -> Tensor:
    """Flatten masks of requests to a tree mask: [M] bool, with true spare entries at its end."""
    spare = torch.ones(num_spare, dtype=torch.bool)
    return torch.cat([*(rows.flatten() for rows in visible), spare])


def reference_attention(scene: Scene) -> Tensor:
    """Compute a scene's attention in float64, from `contexts` and `visible` alone.

    It reads neither the KV cache, the page table nor the batch, which a backend reads.

    returns  [T, Y * Hq, Dv] float64, host; zeros for a token that sees nothing
    """
    of_heads = [layer.scaling for layer in scene.layers for _ in range(layer.tp_q_head_num)]
    scaling = torch.tensor(of_heads, dtype=torch.float64)
    queries = torch.split(scene.q.cpu().double(), scene.counts)
    outputs = [
        one_request(q, keys.double(), values.double(), visible, scaling)
        for q, (keys, values), visible in zip(queries, scene.contexts, scene.visible, strict=True)
    ]
    width = len(scaling), scene.layer.v_head_dim
    return torch.cat([torch.empty(0, *width, dtype=torch.float64), *outputs])


def one_request(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scaling: Tensor) -> Tensor:
    """Attend from q [N, H, D] to keys [C, H / G, D] and values [C, H / G, Dv]: [N, H, Dv].

    Heads of several layers stand side by side: each G query heads in a row share a KV head.

    scaling  [H] float64
    """
    group = q.shape[1] // keys.shape[1]
    keys, values = (x.repeat_interleave(group, dim=1) for x in (keys, values))
    scores = torch.einsum("nhd,chd->hnc", q, keys) * scaling[:, None, None]
    weights = scores.masked_fill(~mask, -torch.inf).softmax(-1).nan_to_num(0)
    return torch.einsum("hnc,chd->nhd", weights, values)
