"""Scenes: batches over a paged KV cache, with their attention by definition.

Authors of backends test numerics with them, on any device. `reference_attention` computes the
expected output. Slots and table entries without an owner hold poison, so an extra read shows.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import accumulate

import torch
from torch import Tensor

from backend_caps.kit.scene import (
    Layout,
    Pools,
    Requests,
    Scene,
    batch_of,
    causal,
    extend_dtype_of,
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
    "Layout",
    "Numbers",
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
"""Prompts without cached tokens."""
PREFIXED: Requests = ((7, 4), (16, 1), (3, 6))
"""Prompts with a cached prefix."""
DECODE: Requests = ((4, 1), (0, 1), (18, 1))
"""One token each; one request has no context yet."""
VERIFY: Requests = ((4, 3), (0, 3), (18, 3))
"""Three tokens each, as in a verify of drafts."""


def layer_of(
    num_query_heads: int = 4,
    num_kv_heads: int = 2,
    head_size: int = 8,
    value_size: int | None = None,
    scaling: float = 0.3,
    layer_id: int = 0,
) -> AttentionLayer:
    """Make a layer of a scene; values are as wide as keys unless `value_size` is given."""
    return AttentionLayer(
        layer_id=layer_id,
        tp_q_head_num=num_query_heads,
        tp_k_head_num=num_kv_heads,
        qk_head_dim=head_size,
        v_head_dim=head_size if value_size is None else value_size,
        scaling=scaling,
    )


class Numbers(Enum):
    """How large the numbers of a scene are."""

    USUAL = "usual"
    """Random ones about 1."""
    HIGH = "scores-high"
    """Every score is about 110, whose exponential overflows in float32."""
    LOW = "scores-low"
    """Every score is about -110, whose exponential is 0 in float32."""
    LARGE = "values-large"
    """Values are about 64."""

    @property
    def looseness(self) -> float:
        """The factor on a tolerance: what a dtype rounds grows with what it rounds."""
        return {Numbers.USUAL: 1.0, Numbers.LARGE: _LARGE}.get(self, _SCORE / 4)


_SCORE, _LARGE = 110.0, 64.0
_KEY = 16.0
"""The first feature of each key where scores are high or low."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The sizes and contents of a scene, apart from its requests."""

    layer: AttentionLayer = field(default_factory=layer_of)
    """The first layer that runs."""
    later_layers: tuple[AttentionLayer, ...] = ()
    """The layers that run behind it, of the same sizes and with higher ids."""
    numbers: Numbers = Numbers.USUAL
    layout: Layout = Layout.SEPARATE
    """How each layer gets queries, keys and values."""
    index_dtype: torch.dtype = torch.int32
    """The dtype of the page table."""
    extend_dtype: torch.dtype = torch.int64
    """The dtype of the extend lengths."""
    dtype: torch.dtype = torch.float32
    cache_dtype: torch.dtype | None = None
    """None: as `dtype`."""
    page_size: int = 1
    poison: float = torch.nan
    """The value of every unowned slot of the KV cache."""
    stale_slot: int = 0
    """The value of every unowned entry of the page table."""
    max_context_len: int = 24
    """L: the width of the page table."""
    num_slots: int = 256
    """S: the slots of the KV cache; its first page is for padding."""
    num_shared: int = 0
    """Tokens, of whole pages, that all requests begin with, in the same slots."""
    num_rows: int = 12
    """P: rows of requests, and the padding row."""
    seed: int = 0

    @property
    def layers(self) -> tuple[AttentionLayer, ...]:
        """The layers that run."""
        return (self.layer, *self.later_layers)

    def empty_pools(self) -> Pools:
        """Make pools without owned rows or slots, up to the last layer that runs."""
        shape = self.num_rows, self.max_context_len
        table = torch.full(shape, self.stale_slot, dtype=self.index_dtype)
        num_heads, dtype = self.layer.tp_k_head_num, self.cache_dtype or self.dtype
        outer = self.layers[-1].layer_id + 1, self.num_slots, num_heads
        keys, values = (
            torch.full((*outer, size), self.poison, dtype=dtype)
            for size in (self.layer.qk_head_dim, self.layer.v_head_dim)
        )
        return Pools(table, keys, values, self.page_size, self.layers)

    def queries(self, count: int, generator: torch.Generator) -> Tensor:
        """Draw queries: [count, Y * Hq, D]."""
        num_heads, size = self.layer.tp_q_head_num, self.layer.qk_head_dim
        drawn = torch.randn(count, len(self.layers) * num_heads, size, generator=generator)
        if self.numbers in {Numbers.HIGH, Numbers.LOW}:
            score = _SCORE if self.numbers is Numbers.HIGH else -_SCORE
            for layer, queries in zip(self.layers, drawn.chunk(len(self.layers), 1), strict=True):
                queries[..., 0] = score / (_KEY * layer.scaling)
        return drawn.to(self.dtype)

    def keys_and_values(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw keys and values: [count, Y * Hk, D] and [count, Y * Hk, Dv]."""
        num_heads = len(self.layers) * self.layer.tp_k_head_num
        keys, values = (
            torch.randn(count, num_heads, size, generator=generator)
            for size in (self.layer.qk_head_dim, self.layer.v_head_dim)
        )
        if self.numbers in {Numbers.HIGH, Numbers.LOW}:
            keys[..., 0] = _KEY
        if self.numbers is Numbers.LARGE:
            values *= _LARGE
        return keys.to(self.dtype), values.to(self.dtype)


def scene(requests: Requests, *, uniform: bool = False, setting: Setting | None = None) -> Scene:
    """Make a scene; a uniform one has no extend lengths, as in decode and in verify."""
    setting = Setting() if setting is None else setting
    generator = torch.Generator().manual_seed(setting.seed)
    lengths = [sum(request) for request in requests]
    keys, values = setting.keys_and_values(sum(lengths), generator)
    for first in list(accumulate(lengths))[:-1]:
        for own in (keys, values):
            own[first : first + setting.num_shared] = own[: setting.num_shared]
    pools, rows, slots = _pools(lengths, setting, generator)
    fresh = torch.cat([torch.arange(old + new) >= old for old, new in requests])
    pools.store(slots[~fresh], keys[~fresh], values[~fresh])
    return Scene(
        pools=pools,
        layers=setting.layers,
        layout=setting.layout,
        batch=batch_of(
            requests, rows, slots[fresh], uniform=uniform, extend_dtype=setting.extend_dtype
        ),
        q=setting.queries(int(fresh.sum()), generator),
        k=keys[fresh],
        v=values[fresh],
        contexts=[*zip(torch.split(keys, lengths), torch.split(values, lengths), strict=True)],
        visible=[causal(new, old + new) for old, new in requests],
    )


def padded(real: Scene, *, rows: int, tokens: int) -> Scene:
    """Pad a scene as a graph runner does: with pool row 0, and tokens of poison."""
    whole = real.batch
    batch = batch_of(
        [*real.requests, *[(1, 0)] * rows],
        _more(whole.req_pool_indices, rows, 0),
        _more(whole.out_cache_loc, tokens, 0),
        uniform=whole.extend_seq_lens is None,
        extend_dtype=extend_dtype_of(whole),
    )
    batch.mode, batch.tree_mask = whole.mode, whole.tree_mask
    batch.positions = _more(whole.positions, tokens, 0)
    batch.extend_prefix_lens_cpu = None
    q, k, v = (_more(tensor, tokens, torch.nan) for tensor in (real.q, real.k, real.v))
    return replace(real, batch=batch, q=q, k=k, v=v)


def sharing(real: Scene, num_tokens: int) -> Scene:
    """Let all requests share the first one's leading tokens and their slots.

    Args:
        real: a scene whose requests each have at least `num_tokens` cached tokens.
        num_tokens: the number of shared tokens.
    """
    table, rows = real.pools.req_to_token.clone(), real.batch.req_pool_indices
    table[rows, :num_tokens] = table[rows[0], :num_tokens]

    def joined(first: Tensor, rest: Tensor) -> Tensor:
        return torch.cat([first[:num_tokens], rest[num_tokens:]])

    keys, values = real.contexts[0]
    contexts = [(joined(keys, k), joined(values, v)) for k, v in real.contexts]
    return replace(real, pools=replace(real.pools, req_to_token=table), contexts=contexts)


def _pools(
    lengths: Sequence[int], setting: Setting, generator: torch.Generator
) -> tuple[Pools, Tensor, Tensor]:
    """Place contexts on random pages: pools, each request's row, all slots in token order."""
    size, pools = setting.page_size, setting.empty_pools()
    free = torch.randperm(setting.num_slots // size - 1, generator=generator) + 1
    rows = torch.randperm(setting.num_rows - 1, generator=generator)[: len(lengths)] + 1
    shared, owned = free[:0], list[Tensor]()
    for row, length in zip(rows, lengths, strict=True):
        num_pages = -(-(length - len(shared)) // size)
        pages, free = free[:num_pages], free[num_pages:]
        slots = (pages[:, None] * size + torch.arange(size)).flatten()
        owned.append(torch.cat([shared, slots])[:length])
        shared = owned[0][: setting.num_shared]
        pools.req_to_token[row, :length] = owned[-1].to(pools.req_to_token.dtype)
    return pools, rows, torch.cat(owned)


def _more(tensor: Tensor, count: int, value: float) -> Tensor:
    return torch.cat([tensor, tensor.new_full((count, *tensor.shape[1:]), value)])


Tree = Sequence[int]
"""The parent of each node; the root comes first, and is its own parent."""

CHAIN: Tree = (0, 0, 1, 2)
"""Each node continues the one before."""
FORK: Tree = (0, 0, 0, 1)
"""Two branches, the first of which continues."""
STAR: Tree = (0, 0, 0, 0)
"""All nodes continue the root."""
COMB: Tree = (0, 0, 0, 2)
"""Two branches, the second of which continues."""
GROVE = ((4, FORK), (0, STAR), (18, CHAIN), (7, COMB))
"""Cached tokens and a tree behind them, for each request."""


def tree_scene(
    requests: Sequence[tuple[int, Tree]], *, num_spare: int = 0, setting: Setting | None = None
) -> Scene:
    """Make a scene of trees of one size, as in verify, with spare entries behind its mask."""
    masked = [(prefix, visible_nodes(tree)) for prefix, tree in requests]
    return masked_scene(masked, num_spare=num_spare, setting=setting)


def masked_scene(
    requests: Sequence[tuple[int, Tensor]], *, num_spare: int = 0, setting: Setting | None = None
) -> Scene:
    """Make a scene of requests with a tree mask.

    A request is its number of cached tokens that all new tokens see, and the mask of the tokens
    behind them, [Q, C] bool; the last Q of these C tokens are new.
    """
    sizes = [(prefix + mask.shape[1] - len(mask), len(mask)) for prefix, mask in requests]
    plain = scene(sizes, uniform=True, setting=setting)
    return with_mask(plain, [after_prefix(*request) for request in requests], num_spare=num_spare)


def with_mask(plain: Scene, visible: Sequence[Tensor], *, num_spare: int = 0) -> Scene:
    """Give a uniform scene the masks of its requests, and the tree mask of them."""
    # A node's position is its depth behind the prefix.
    depths = [mask.sum(1) - 1 for mask in visible]
    batch = replace(
        plain.batch,
        tree_mask=flat_mask(visible, num_spare),
        positions=torch.cat([plain.batch.positions[:0], *depths]),
    )
    return replace(plain, batch=batch, visible=visible)


def visible_nodes(tree: Tree) -> Tensor:
    """Return the mask by which each node sees itself and its ancestors: [N, N] bool."""
    visible = torch.eye(len(tree), dtype=torch.bool)
    for node, parent in enumerate(tree):
        visible[node] |= visible[parent] if parent != node else False
    return visible


def beams(num_beams: int, num_steps: int, dice: random.Random) -> Tensor:
    """Draw the mask of a draft step's beams: [K, S * K] bool.

    A beam sees itself and one beam of each step before. Each step writes its beams' tokens behind
    those of the step before.
    """
    itself = torch.eye(num_beams, dtype=torch.bool)
    mask = itself
    for _ in range(num_steps - 1):
        parents = [dice.randrange(num_beams) for _ in range(num_beams)]
        mask = torch.cat([mask[parents], itself], dim=1)
    return mask


def dice_of(seed: int) -> random.Random:
    """Make a generator from a seed: the same draws on every machine."""
    return random.Random(seed)  # noqa: S311 - no secrets


def random_tree(num_tokens: int, topk: int, dice: random.Random) -> Tree:
    """Draw a tree of nodes with at most `topk` children."""
    tree = [0]
    for node in range(1, num_tokens):
        tree.append(dice.choice([at for at in range(node) if tree[1:].count(at) < topk]))
    return tree


def after_prefix(prefix: int, mask: Tensor) -> Tensor:
    """Extend a mask, [N, C] bool, by visible cached tokens: [N, prefix + C] bool."""
    return torch.cat([mask.new_ones(len(mask), prefix), mask], dim=1)
