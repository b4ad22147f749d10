"""Scenes: batches over a paged cache, with the attention that their definition gives.

What an author of a backend tests numerics with, on any device. `reference_attention` says what a
backend has to return, and whatever no request owns is poison, so that a read too many shows.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from backend_caps.kit.scene import (
    Pools,
    Requests,
    Scene,
    batch_of,
    flat_mask,
    moved,
    reference_attention,
)
from backend_caps.runtime.model.layers import AttentionLayer

__all__ = [
    "CHAIN",
    "COMB",
    "DECODE",
    "FORK",
    "GROVE",
    "PREFILL",
    "PREFIXED",
    "STAR",
    "VERIFY",
    "Pools",
    "Requests",
    "Scene",
    "Setting",
    "Tree",
    "batch_of",
    "beams",
    "causal",
    "dice_of",
    "flat_mask",
    "layer_of",
    "masked_scene",
    "moved",
    "padded",
    "random_tree",
    "reference_attention",
    "scene",
    "sharing",
    "tree_scene",
    "visible_nodes",
    "with_mask",
]

PREFILL: Requests = ((0, 5), (0, 1), (0, 9))
"""Prompts of which nothing is cached."""
PREFIXED: Requests = ((7, 4), (16, 1), (3, 6))
"""Prompts whose beginning is cached."""
DECODE: Requests = ((4, 1), (0, 1), (18, 1))
"""One token each; one request has no context yet."""
VERIFY: Requests = ((4, 3), (0, 3), (18, 3))
"""As many tokens each, as drafts are verified."""


def layer_of(
    num_query_heads: int = 4,
    num_kv_heads: int = 2,
    head_size: int = 8,
    value_size: int | None = None,
    scaling: float = 0.3,
) -> AttentionLayer:
    """Make the layer of a scene; values are as wide as keys unless it is said."""
    return AttentionLayer(
        layer_id=0,
        tp_q_head_num=num_query_heads,
        tp_k_head_num=num_kv_heads,
        qk_head_dim=head_size,
        v_head_dim=head_size if value_size is None else value_size,
        scaling=scaling,
    )


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What a scene is made of, but for its requests."""

    layer: AttentionLayer = field(default_factory=layer_of)
    dtype: torch.dtype = torch.float32
    cache_dtype: torch.dtype | None = None
    """None: as `dtype`."""
    page_size: int = 1
    poison: float = torch.nan
    """What every unowned slot of the KV cache holds."""
    stale_slot: int = 0
    """What every unowned entry of the page table holds."""
    max_context_len: int = 24
    """L: how wide the page table is."""
    num_slots: int = 256
    """S: how large the KV cache is; its first page is the padding's."""
    num_rows: int = 12
    """P: requests that have room, and the padding row."""
    seed: int = 0

    def empty_pools(self) -> Pools:
        """Make the pools, in which nobody owns anything."""
        table = torch.full((self.num_rows, self.max_context_len), self.stale_slot).int()
        num_heads, dtype = self.layer.tp_k_head_num, self.cache_dtype or self.dtype
        keys, values = (
            torch.full((self.num_slots, num_heads, size), self.poison, dtype=dtype)
            for size in (self.layer.qk_head_dim, self.layer.v_head_dim)
        )
        return Pools(table, keys, values, self.page_size, self.layer)

    def queries(self, count: int, generator: torch.Generator) -> Tensor:
        """Draw so many queries: [count, Hq, D]."""
        shape = count, self.layer.tp_q_head_num, self.layer.qk_head_dim
        return torch.randn(shape, generator=generator).to(self.dtype)

    def keys_and_values(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw so many keys and values: [count, Hk, D] and [count, Hk, Dv]."""
        keys, values = (
            torch.randn(count, self.layer.tp_k_head_num, size, generator=generator).to(self.dtype)
            for size in (self.layer.qk_head_dim, self.layer.v_head_dim)
        )
        return keys, values


def scene(requests: Requests, *, uniform: bool = False, setting: Setting | None = None) -> Scene:
    """Make a scene; a uniform one has no extend lengths, as in decode and in verify."""
    setting = Setting() if setting is None else setting
    generator = torch.Generator().manual_seed(setting.seed)
    lengths = [sum(request) for request in requests]
    keys, values = setting.keys_and_values(sum(lengths), generator)
    pools, rows, slots = _pools(lengths, setting, generator)
    fresh = torch.cat([torch.arange(old + new) >= old for old, new in requests])
    pools.set_kv_buffer(setting.layer, slots[~fresh], keys[~fresh], values[~fresh])
    return Scene(
        pools=pools,
        layer=setting.layer,
        batch=batch_of(requests, rows, slots[fresh], uniform=uniform),
        q=setting.queries(int(fresh.sum()), generator),
        k=keys[fresh],
        v=values[fresh],
        contexts=[*zip(torch.split(keys, lengths), torch.split(values, lengths), strict=True)],
        visible=[causal(new, old + new) for old, new in requests],
    )


def causal(count: int, length: int) -> Tensor:
    """Let each of the last tokens of a context see all up to itself: [count, length] bool."""
    return torch.ones(count, length, dtype=torch.bool).tril(length - count)


def padded(real: Scene, *, rows: int, tokens: int) -> Scene:
    """Pad a scene as a graph runner does: rows of pool row 0, and tokens of poison."""
    whole = real.batch
    batch = batch_of(
        [*real.requests, *[(1, 0)] * rows],
        _more(whole.req_pool_indices, rows, 0),
        _more(whole.out_cache_loc, tokens, 0),
        uniform=whole.extend_seq_lens is None,
    )
    batch.mode, batch.tree_mask = whole.mode, whole.tree_mask
    batch.positions = _more(whole.positions, tokens, 0)
    batch.extend_prefix_lens_cpu = None
    q, k, v = (_more(own, tokens, torch.nan) for own in (real.q, real.k, real.v))
    return replace(real, batch=batch, q=q, k=k, v=v)


def sharing(real: Scene, num_tokens: int) -> Scene:
    """Let every context begin with the first one's tokens, in the first one's slots.

    Args:
        real: a scene whose requests all have so many cached tokens.
        num_tokens: how many are shared.
    """
    table, rows = real.pools.req_to_token.clone(), real.batch.req_pool_indices
    table[rows, :num_tokens] = table[rows[0], :num_tokens]

    def begun(first: Tensor, own: Tensor) -> Tensor:
        return torch.cat([first[:num_tokens], own[num_tokens:]])

    keys, values = real.contexts[0]
    contexts = [(begun(keys, of_keys), begun(values, own)) for of_keys, own in real.contexts]
    return replace(real, pools=replace(real.pools, req_to_token=table), contexts=contexts)


def _pools(
    lengths: Sequence[int], setting: Setting, generator: torch.Generator
) -> tuple[Pools, Tensor, Tensor]:
    """Place the contexts on random pages: the pools, a row each, all slots in plain order."""
    size, pools = setting.page_size, setting.empty_pools()
    free = torch.randperm(setting.num_slots // size - 1, generator=generator) + 1
    rows = torch.randperm(setting.num_rows - 1, generator=generator)[: len(lengths)] + 1
    owned = []
    for row, length in zip(rows, lengths, strict=True):
        num_pages = -(-length // size)
        pages, free = free[:num_pages], free[num_pages:]
        owned.append((pages[:, None] * size + torch.arange(size)).flatten()[:length])
        pools.req_to_token[row, :length] = owned[-1].int()
    return pools, rows, torch.cat(owned)


def _more(tensor: Tensor, count: int, value: float) -> Tensor:
    return torch.cat([tensor, tensor.new_full((count, *tensor.shape[1:]), value)])


Tree = Sequence[int]
"""The parent of each node; the root, which comes first, is its own."""

CHAIN: Tree = (0, 0, 1, 2)
"""Each node continues the one before."""
FORK: Tree = (0, 0, 0, 1)
"""Two branches, of which one goes on."""
STAR: Tree = (0, 0, 0, 0)
"""All nodes continue the root."""
COMB: Tree = (0, 0, 0, 2)
"""Two branches, of which the other one goes on."""
GROVE = ((4, FORK), (0, STAR), (18, CHAIN), (7, COMB))
"""Cached tokens and the tree over them, for each request."""


def tree_scene(
    requests: Sequence[tuple[int, Tree]], *, num_spare: int = 0, setting: Setting | None = None
) -> Scene:
    """Make a scene of trees of one size, as in verify; the mask has spare entries behind."""
    masked = [(prefix, visible_nodes(tree)) for prefix, tree in requests]
    return masked_scene(masked, num_spare=num_spare, setting=setting)


def masked_scene(
    requests: Sequence[tuple[int, Tensor]], *, num_spare: int = 0, setting: Setting | None = None
) -> Scene:
    """Make a scene of cached tokens that all see, and of what else they see, [Q, C] bool.

    The Q new tokens are the last of the C.
    """
    sizes = [(prefix + seen.shape[1] - len(seen), len(seen)) for prefix, seen in requests]
    plain = scene(sizes, uniform=True, setting=setting)
    return with_mask(plain, [after_prefix(*request) for request in requests], num_spare=num_spare)


def with_mask(plain: Scene, visible: Sequence[Tensor], *, num_spare: int = 0) -> Scene:
    """Let the tokens of a uniform scene see what is given, and say so by a tree mask."""
    batch = replace(plain.batch, tree_mask=flat_mask(visible, num_spare))
    return replace(plain, batch=batch, visible=visible)


def visible_nodes(tree: Tree) -> Tensor:
    """Let each node see itself and those that it continues: [N, N] bool."""
    visible = torch.eye(len(tree), dtype=torch.bool)
    for node, parent in enumerate(tree):
        visible[node] |= visible[parent] if parent != node else False
    return visible


def beams(num_beams: int, num_steps: int, dice: random.Random) -> Tensor:
    """Let each beam of the last draft step see itself and one beam of each step before.

    Each step has written its beams' tokens behind those of the step before: [K, S * K] bool.
    """
    seen = torch.eye(num_beams, dtype=torch.bool)
    whole = seen
    for _ in range(num_steps - 1):
        parents = [dice.randrange(num_beams) for _ in range(num_beams)]
        whole = torch.cat([whole[parents], seen], dim=1)
    return whole


def dice_of(seed: int) -> random.Random:
    """Make dice that fall alike for the same seed."""
    return random.Random(seed)  # noqa: S311 - no secrets


def random_tree(num_tokens: int, topk: int, dice: random.Random) -> Tree:
    """Grow a tree of which no node has more than `topk` children."""
    tree = [0]
    for node in range(1, num_tokens):
        tree.append(dice.choice([at for at in range(node) if tree[1:].count(at) < topk]))
    return tree


def after_prefix(prefix: int, seen: Tensor) -> Tensor:
    """Let new tokens see cached ones too, and what they see of each other: [N, prefix + C] bool."""
    return torch.cat([seen.new_ones(len(seen), prefix), seen], dim=1)
