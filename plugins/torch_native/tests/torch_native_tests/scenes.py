"""How scenes are made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from .rig import MAX_CONTEXT_LEN, NUM_ROWS, NUM_SLOTS, Batch, Heads, Pools, Scene

Requests = Sequence[tuple[int, int]]
"""Cached tokens and new tokens, for each request."""

PREFILL: Requests = ((0, 5), (0, 1), (0, 9))
PREFIXED: Requests = ((7, 4), (16, 1), (3, 6))
DECODE: Requests = ((4, 1), (0, 1), (18, 1))
VERIFY: Requests = ((4, 3), (0, 3), (18, 3))


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What a scene is made of, but for its requests."""

    heads: Heads = field(default_factory=Heads)
    dtype: torch.dtype = torch.float32
    cache_dtype: torch.dtype | None = None
    """None: as `dtype`."""
    page_size: int = 1
    poison: float = torch.nan
    """What every unowned slot of the KV cache holds."""
    stale_slot: int = 0
    """What every unowned entry of the page table holds."""
    max_context_len: int = MAX_CONTEXT_LEN
    num_slots: int = NUM_SLOTS
    seed: int = 0


def scene(requests: Requests, *, uniform: bool = False, setting: Setting | None = None) -> Scene:
    """Make a scene; a uniform one has no extend lengths."""
    setting = Setting() if setting is None else setting
    generator = torch.Generator().manual_seed(setting.seed)
    lengths, counts = [sum(request) for request in requests], [new for _, new in requests]
    keys, values = (_tokens(sum(lengths), size, setting, generator) for size in _kv_sizes(setting))
    pools, rows, slots = _pools(lengths, setting, generator)
    fresh = torch.cat([torch.arange(n) >= n - new for n, new in zip(lengths, counts, strict=True)])
    pools.set_kv_buffer(setting.heads, slots[~fresh], keys[~fresh], values[~fresh])
    return Scene(
        pools=pools,
        heads=setting.heads,
        batch=Batch(
            req_pool_indices=rows,
            seq_lens=torch.tensor(lengths),
            seq_lens_cpu=torch.tensor(lengths),
            extend_seq_lens=None if uniform else torch.tensor(counts, dtype=torch.int32),
            extend_seq_lens_cpu=None if uniform else counts,
            out_cache_loc=slots[fresh],
        ),
        q=_tokens(sum(counts), _q_size(setting), setting, generator),
        k=keys[fresh],
        v=values[fresh],
        contexts=[*zip(torch.split(keys, lengths), torch.split(values, lengths), strict=True)],
        counts=counts,
        visible=[causal(new, length) for new, length in zip(counts, lengths, strict=True)],
    )


def causal(count: int, length: int) -> Tensor:
    """Let each of the last tokens of a context see all up to itself: [count, length] bool."""
    return torch.ones(count, length, dtype=torch.bool).tril(length - count)


def padded(real: Scene, *, rows: int, tokens: int) -> Scene:
    """Pad a scene as a graph runner does: rows of pool row 0, and tokens of poison."""
    batch = real.batch
    lengths = _more(batch.seq_lens, rows, 1)
    extends = batch.extend_seq_lens
    return replace(
        real,
        batch=Batch(
            req_pool_indices=_more(batch.req_pool_indices, rows, 0),
            seq_lens=lengths,
            seq_lens_cpu=lengths.clone(),
            extend_seq_lens=None if extends is None else _more(extends, rows, 0),
            extend_seq_lens_cpu=None if extends is None else [*real.counts, *[0] * rows],
            out_cache_loc=_more(batch.out_cache_loc, tokens, 0),
            tree_mask=batch.tree_mask,
        ),
        q=_more(real.q, tokens, torch.nan),
        k=_more(real.k, tokens, torch.nan),
        v=_more(real.v, tokens, torch.nan),
    )


def _pools(
    lengths: Sequence[int], setting: Setting, generator: torch.Generator
) -> tuple[Pools, Tensor, Tensor]:
    """Place the contexts on random pages: the pools, a row each, all slots in plain order."""
    size = setting.page_size
    free = torch.randperm(setting.num_slots // size - 1, generator=generator) + 1
    rows = torch.randperm(NUM_ROWS - 1, generator=generator)[: len(lengths)] + 1
    table = torch.full((NUM_ROWS, setting.max_context_len), setting.stale_slot, dtype=torch.int32)
    for row, length in zip(rows, lengths, strict=True):
        num_pages = -(-length // size)
        pages, free = free[:num_pages], free[num_pages:]
        slots = (pages[:, None] * size + torch.arange(size)).flatten()
        table[row, :length] = slots[:length].int()
    owned = torch.cat(
        [table[row, :length] for row, length in zip(rows, lengths, strict=True)]
    ).long()
    dtype = setting.cache_dtype or setting.dtype
    buffers = (
        torch.full((setting.num_slots, *head), setting.poison, dtype=dtype)
        for head in _kv_sizes(setting)
    )
    return Pools(table, *buffers), rows, owned


def _tokens(
    count: int, size: tuple[int, int], setting: Setting, generator: torch.Generator
) -> Tensor:
    return torch.randn(count, *size, generator=generator).to(setting.dtype)


def _q_size(setting: Setting) -> tuple[int, int]:
    return setting.heads.tp_q_head_num, setting.heads.qk_head_dim


def _kv_sizes(setting: Setting) -> tuple[tuple[int, int], tuple[int, int]]:
    heads = setting.heads
    return (heads.tp_k_head_num, heads.qk_head_dim), (heads.tp_k_head_num, heads.v_head_dim)


def _more(tensor: Tensor, count: int, value: float) -> Tensor:
    return torch.cat([tensor, tensor.new_full((count, *tensor.shape[1:]), value)])
